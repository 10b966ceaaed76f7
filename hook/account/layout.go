package account

import "encoding/binary"

// Names of the files in the folder of a share.
const (
	LimitFile   = "limit"
	GrantFile   = "grant"
	AccountFile = "account"
)

// Version of the layout. Files of another version are refused.
const Version = 1

// Unit is the number of bytes in which memory is counted. A limit is rounded
// down to it, an allocation up.
const Unit = 1 << unitShift

// MaxMemory is the largest limit, in bytes, that the files can carry.
const MaxMemory = maxUnits << unitShift

// Slots is the number of processes of one share that can hold memory at once.
const Slots = 960

const (
	limitMagic   uint64 = 0x314d494c494c5353
	grantMagic   uint64 = 0x31415247494c5353
	accountMagic uint64 = 0x31434341494c5353

	unitShift = 9
	seqBits   = 20
	slotBits  = 10
	unitBits  = 34
	maxUnits  = 1<<unitBits - 1

	limitWhole uint32 = 1
)

// Sizes of the files, in bytes.
const (
	limitSize   = 128
	grantSize   = 128
	accountSize = 65536
	slotSize    = 64
)

// Offsets of the fields, in bytes from the start of their struct.
const (
	offMagic   = 0
	offVersion = 8
	offSize    = 12

	limitOffCard        = 16
	limitOffMemory      = 32
	limitOffCorePercent = 40
	limitOffCorePolicy  = 44
	limitOffFlags       = 48
	limitOffChecksum    = 120

	grantOffSequence   = 16
	grantOffHeartbeat  = 24
	grantOffOverhead   = 32
	grantOffCoreRate   = 40
	grantOffBusyFactor = 44
	grantOffGated      = 48
	grantOffFallback   = 52
	grantOffChecksum   = 120

	accountOffSlots   = 16
	accountOffTotal   = 64
	accountOffPeak    = 128
	accountOffRefused = 136
	accountOffReaped  = 144
	accountOffNext    = 152
	accountOffTokens  = 192
	accountOffFilled  = 200
	accountOffBusy    = 208
	accountOffCharged = 216
	accountOffWaited  = 224
	accountOffAsked   = 232
	accountOffSlot    = 4096

	slotOffApplied  = 0
	slotOffRecord   = 8
	slotOffPID      = 24
	slotOffContexts = 28
	slotOffBusy     = 32
	slotOffOverhead = 40
)

var le = binary.LittleEndian

// checksum is FNV-1a with 64 bits, as sluice_checksum in C.
func checksum(b []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, c := range b {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	return h
}

// putHead writes what every file begins with.
func putHead(b []byte, magic uint64, size uint32) {
	le.PutUint64(b[offMagic:], magic)
	le.PutUint32(b[offVersion:], Version)
	le.PutUint32(b[offSize:], size)
}
