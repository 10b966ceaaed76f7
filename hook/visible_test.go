package hook

import (
	"testing"
)

// TestLimitsFollowTheCardNotItsIndex: CUDA numbers the cards that it is told to
// show; each keeps its own limit whatever its number is. NVIDIA_VISIBLE_DEVICES
// of an image means nothing here.
func TestLimitsFollowTheCardNotItsIndex(t *testing.T) {
	n := newNode(t, 2, 80*gi, 0)
	n.share("one", 0, 1*gi, 0)
	n.share("two", 1, 2*gi, 0)
	box := n.container("a", []int{0, 1}, "one", "two")
	for _, c := range []struct {
		visible string
		limits  []string // of device 0, device 1
	}{
		{"0", []string{"1024Mi"}},
		{"1", []string{"2048Mi"}},
		{"0,1", []string{"1024Mi", "2048Mi"}},
		{"1,0", []string{"2048Mi", "1024Mi"}},
		{cardUUID(1), []string{"2048Mi"}},
		{cardUUID(1) + "," + cardUUID(0), []string{"2048Mi", "1024Mi"}},
		{"1,7,0", []string{"2048Mi"}}, // the list ends at what is no card
		{"", nil},
		{"9", nil},
		{"0,0", nil}, // no list at all
		{"no-card", nil},
	} {
		t.Run("visible="+c.visible, func(t *testing.T) {
			cmd := n.command(box, n.lab.play)
			cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+c.visible, "NVIDIA_VISIBLE_DEVICES=void")
			p := n.run(cmd)
			if len(c.limits) == 0 {
				p.want("init", "100") // CUDA_ERROR_NO_DEVICE, the driver's own answer
				return
			}
			p.want("init", "0")
			for device, limit := range c.limits {
				p.want("total "+string(rune('0'+device)), "0 total "+limit)
				p.want("retain "+string(rune('0'+device)), "0")
				p.want("alloc linear 3Gi", "2")
			}
			p.end()
		})
	}
}
