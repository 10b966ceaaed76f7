// Command sanity checks a DRA driver against what a kubelet expects of it. See
// docs/dev/sanity.md.
package main

import (
	"fmt"
	"os"
)

func main() {
	if err := newCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "sanity:", err)
		os.Exit(1)
	}
}
