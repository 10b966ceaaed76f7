// Command suite runs the project's tests more strictly than `go test`: `suite run` counts them and
// fails on a skip; `suite cases` runs every test that docs/dev/cases.md names.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	root := &cobra.Command{Use: "suite", Short: "Run the project's tests", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(runCommand(), casesCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}
