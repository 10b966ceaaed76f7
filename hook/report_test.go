package hook

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-gpu/sluice/hook/account"
)

// TestReportsSayWhatTheDriverSaysWhereTheSliceHasNoSay: before cuInit, without
// a context, without a place for the answer.
func TestReportsSayWhatTheDriverSaysWhereTheSliceHasNoSay(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("info", "3 free 0Mi+0 total 0Mi")
	p.want("alloc linear 1Mi", "3")
	p.want("total 0", "3 total 0Mi")
	p.want("init", "0")
	p.want("info", "201 free 0Mi+0 total 0Mi")
	p.want("info-null", "201 201 201 free 0Mi total 0Mi")
	p.want("alloc linear 1Mi", "201")
	p.want("total 0", "0 total 1024Mi")
	p.want("total 7", "101 total 0Mi")
	p.want("retain 0", "0")
	p.want("alloc linear 1000Mi", "0 #0")
	p.want("info-null", "0 0 0 free 24Mi total 1024Mi")
	p.want("use-none", "0")
	p.want("info", "201 free 0Mi+0 total 0Mi")
	p.end()
}

// TestFreeIsNeverNegative when more is charged than the limit allows.
func TestFreeIsNeverNegative(t *testing.T) {
	n := newNode(t, 1, 80*gi, 0)
	dir := n.share("a", 0, gi, 0)
	p := n.start(n.container("a", []int{0}, "a"))
	p.want("init", "0")
	p.want("retain 0", "0")

	f, err := os.OpenFile(filepath.Join(dir, account.AccountFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The total word, as somebody of the share could have left it: 5 GiB.
	word := make([]byte, 8)
	for i, b := range []uint64{5 * gi >> 9 << 30} {
		for k := range 8 {
			word[i*8+k] = byte(b >> (8 * k))
		}
	}
	if _, err := f.WriteAt(word, 64); err != nil {
		t.Fatal(err)
	}
	p.want("info", "0 free 0Mi+0 total 1024Mi")
	p.want("alloc linear 1", "2")
	p.end()
}
