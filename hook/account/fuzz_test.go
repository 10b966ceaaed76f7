package account

import "testing"

// FuzzLimitDecoder: what is accepted is exactly what would be written.
func FuzzLimitDecoder(f *testing.F) {
	f.Add(aLimit(f).encode())
	f.Add(Limit{Card: UUID{1}, Whole: true}.encode())
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := decodeLimit(b)
		if err != nil {
			return
		}
		again, err := decodeLimit(l.encode())
		if err != nil || again.Card != l.Card || again.Memory != l.Memory&^(Unit-1) {
			t.Fatalf("%+v became %+v, %v", l, again, err)
		}
	})
}

func FuzzGrantDecoder(f *testing.F) {
	f.Add(Grant{CoreRate: 1}.encode(2))
	f.Add(make([]byte, grantSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		g, seq, err := decodeGrant(b)
		if err != nil {
			return
		}
		if again, s, err := decodeGrant(g.encode(seq)); err != nil || again != g || s != seq {
			t.Fatalf("%+v became %+v, %v", g, again, err)
		}
	})
}

// FuzzAccountDecoder: whatever a tenant writes, the numbers stay in bounds.
func FuzzAccountDecoder(f *testing.F) {
	f.Add(emptyAccount()[:accountOffTotal], uint64(0), uint64(0), uint16(0))
	f.Add(emptyAccount()[:accountOffTotal], ^uint64(0), ^uint64(0), uint16(Slots-1))
	f.Fuzz(func(t *testing.T, head []byte, record, busy uint64, slot uint16) {
		b := make([]byte, accountSize)
		copy(b, head)
		var live [Slots]bool
		for i := range live {
			live[i] = i%2 == 0
			s := b[accountOffSlot+i*slotSize:]
			le.PutUint64(s[slotOffRecord:], record+uint64(i))
			le.PutUint64(s[slotOffRecord+8:], record^uint64(slot))
			le.PutUint64(s[slotOffBusy:], busy)
			le.PutUint64(s[slotOffApplied:], uint64(slot)+uint64(i))
		}
		u, err := decodeAccount(b, &live)
		if err != nil {
			return
		}
		if u.Memory > MaxMemory || u.Dead > MaxMemory || u.Peak > MaxMemory || len(u.Processes) > Slots {
			t.Fatalf("out of bounds: %d, %d, %d", u.Memory, u.Dead, u.Peak)
		}
		for _, p := range u.Processes {
			if p.Memory > MaxMemory || p.Busy < 0 {
				t.Fatalf("out of bounds: %+v", p)
			}
		}
	})
}

// FuzzCoreTimeDecoder: nothing that a tenant writes is negative.
func FuzzCoreTimeDecoder(f *testing.F) {
	f.Add(emptyAccount()[:accountOffSlot], ^uint64(0))
	f.Fuzz(func(t *testing.T, head []byte, v uint64) {
		b := make([]byte, accountOffSlot)
		copy(b, emptyAccount())
		copy(b, head)
		for _, off := range []int{accountOffBusy, accountOffCharged, accountOffWaited} {
			le.PutUint64(b[off:], v)
		}
		c, err := decodeCoreTime(b)
		if err == nil && (c.Busy < 0 || c.Charged < 0 || c.Throttled < 0) {
			t.Fatalf("out of bounds: %+v", c)
		}
	})
}
