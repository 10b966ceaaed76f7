package account

import (
	"fmt"
	"os"
	"path/filepath"
)

// Trim cuts an account that the tenant has made larger than an account is, and
// returns by how many bytes. The file is on the node's disk and the tenant can
// write to it. It stays the same file with the same beginning: processes that
// have it mapped or locked notice nothing.
func Trim(dir string) (int64, error) {
	f, err := openFile(filepath.Join(dir, AccountFile), os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("account of share %s: %w", dir, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() <= accountSize {
		return 0, err
	}
	if err := f.Truncate(accountSize); err != nil {
		return 0, fmt.Errorf("account of share %s: %w", dir, err)
	}
	return info.Size() - accountSize, nil
}
