package term

import (
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// Palette paints words where the output is a terminal, and leaves them plain elsewhere and where NO_COLOR is set
// (no-color.org).
type Palette struct{ on bool }

func NewPalette(w io.Writer, env []string) Palette {
	if !IsTerminal(w) {
		return Palette{}
	}
	noColor := slices.ContainsFunc(env, func(v string) bool {
		return v == "TERM=dumb" || strings.HasPrefix(v, "NO_COLOR=") && v != "NO_COLOR="
	})
	return Palette{on: !noColor}
}

func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width is how many columns the terminal behind w has; 0 says that there is none and nothing needs to be cut.
func Width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	switch {
	case err != nil:
		return 0
	case width <= 0: // a terminal that does not know
		return TableWidth
	}
	return width
}

// TruncateToWidth cuts text to the width, unless that is 0.
func TruncateToWidth(text string, width int) string {
	if width == 0 {
		return text
	}
	return clipRunes(text, width)
}

func (p Palette) paint(code, s string) string {
	if !p.on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p Palette) Bold(s string) string   { return p.paint("1", s) }
func (p Palette) Dim(s string) string    { return p.paint("2", s) }
func (p Palette) Red(s string) string    { return p.paint("31", s) }
func (p Palette) Green(s string) string  { return p.paint("32", s) }
func (p Palette) Yellow(s string) string { return p.paint("33", s) }
func (p Palette) blue(s string) string   { return p.paint("34", s) }
func (p Palette) Cyan(s string) string   { return p.paint("36", s) }

// Topic paints a topic by what it says: errors red, new things green, the rest blue.
func (p Palette) Topic(name string) string {
	switch {
	case strings.HasSuffix(name, ".error"):
		return p.Red(name)
	case strings.HasSuffix(name, ".created"), strings.HasSuffix(name, ".new"), strings.HasSuffix(name, ".started"):
		return p.Green(name)
	default:
		return p.blue(name)
	}
}

// Sanitize replaces control characters, so that what came over the network cannot drive the terminal.
func Sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 {
			return '\uFFFD'
		}
		return r
	}, s)
}
