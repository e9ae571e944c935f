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

// describeError puts into words what an operator can do about an error of the file.
func describeError(path string, err error) error {
	var known *fileError
	if errors.As(err, &known) {
		return err
	}
	hint := ""
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = fmt.Sprintf("the folder %s does not exist: make it, and let the daemon's user write there",
			filepath.Dir(path))
	case errors.Is(err, fs.ErrPermission):
		hint = fmt.Sprintf("the daemon's user may not write %s: give it the right to, and to make files in its folder",
			path)
	case errors.Is(err, syscall.EROFS):
		hint = fmt.Sprintf("the file system of %s is read-only", path)
	case errors.Is(err, syscall.ENOSPC):
		hint = fmt.Sprintf("the disk of %s is full: make room", path)
	case errors.Is(err, syscall.EDQUOT):
		hint = fmt.Sprintf("the quota for %s is used up: make room", path)
	case errors.Is(err, syscall.EFBIG):
		hint = fmt.Sprintf(
			"%s may not become larger: raise the limit on the size of files, or choose a smaller max_size", path,
		)
	default:
		return fmt.Errorf("write %s: %w", path, err)
	}
	return &fileError{hint, err}
}

// fileError adds a description for people to an error.
type fileError struct {
	text string
	err  error
}

func (e *fileError) Error() string { return e.text }
func (e *fileError) Unwrap() error { return e.err }

// checkRegular refuses what is no file: a folder would be renamed as a whole, and a pipe holds up who opens it.
func checkRegular(path string, info os.FileInfo) error {
	switch {
	case info.Mode().IsRegular():
		return nil
	case info.IsDir():
		return &fileError{text: path + " is a directory: name a file in it"}
	}
	return &fileError{text: path + " is no regular file: name another"}
}

// timeoutError describes an attempt that ended while it waited.
func timeoutError(ctx context.Context, waited string) error {
	return fmt.Errorf("%s: %w", waited, context.Cause(ctx))
}
