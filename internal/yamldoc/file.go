package yamldoc

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// ReadBounded reads a file of at most limit bytes. limit is a whole number of MiB.
func ReadBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	err = errors.Join(err, f.Close())
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("it is larger than %dMiB", limit>>20)
	}
	return data, err
}

// OpenErrorReason returns the reason of an error of os.Open, without the file name.
func OpenErrorReason(err error) string {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}
