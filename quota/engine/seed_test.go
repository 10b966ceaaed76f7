package engine

import (
	"os"
	"testing"

	"github.com/sluice-gpu/sluice/quota/internal/seeded"
)

func TestMain(m *testing.M) { os.Exit(seeded.Main(m)) }
