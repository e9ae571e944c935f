package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// describeError adds a remedy to a common error of the file system.
func describeError(path string, err error) error {
	var known *fileError
	if errors.As(err, &known) {
		return err
	}
	hint := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = fmt.Sprintf("the directory %s does not exist: create it, and let the user of the relay write to it",
			filepath.Dir(path))
	case errors.Is(err, fs.ErrPermission):
		hint = fmt.Sprintf(
			"the user of the relay is not allowed to write to %s, or to create files in its directory: grant it", path)
	case errors.Is(err, syscall.EROFS):
		hint = fmt.Sprintf("the file system of %s is read-only", path)
	case errors.Is(err, syscall.ENOSPC):
		hint = fmt.Sprintf("the disk of %s is full: free some space", path)
	case errors.Is(err, syscall.EDQUOT):
		hint = fmt.Sprintf("the disk quota for %s is exhausted: free some space", path)
	case errors.Is(err, syscall.EFBIG):
		hint = fmt.Sprintf(
			"%s has the maximum size of a file: raise the limit (ulimit -f), or choose a smaller max_size", path,
		)
	default:
		return fmt.Errorf("write %s: %w", path, err)
	}
	return &fileError{hint, err}
}

// fileError replaces the text of an error by a description for operators.
type fileError struct {
	text string
	err  error
}

func (e *fileError) Error() string { return e.text }
func (e *fileError) Unwrap() error { return e.err }

// checkRegular rejects directories, which rotation would rename, and pipes, which block when they are opened.
func checkRegular(path string, info os.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return &fileError{text: path + " is a directory: name a file in it"}
	}
	return &fileError{text: path + " is not a regular file: name another"}
}

// timeoutError describes an attempt that timed out while waiting.
func timeoutError(ctx context.Context, waited string) error {
	return fmt.Errorf("%s: %w", waited, context.Cause(ctx))
}
