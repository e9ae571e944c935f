package term

import (
	"io"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/term"
)

// Palette colors words if the output is a terminal. The zero value leaves them plain.
type Palette struct{ on bool }

// NewPalette returns a palette for w. Words are plain without a terminal, or if env sets NO_COLOR (no-color.org).
func NewPalette(w io.Writer, env []string) Palette {
	if !IsTerminal(w) {
		return Palette{}
	}
	noColor := slices.ContainsFunc(env, func(v string) bool {
		return v == "TERM=dumb" || strings.HasPrefix(v, "NO_COLOR=") && v != "NO_COLOR="
	})
	return Palette{on: !noColor}
}

// descriptor is a file, or a writer of this package.
type descriptor interface{ Fd() uintptr }

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(descriptor)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Width returns the number of columns of the terminal w, or 0 if w is not a terminal.
func Width(w io.Writer) int {
	f, ok := w.(descriptor)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	switch {
	case err != nil:
		return 0
	case width <= 0: // unknown to the terminal
		return TableWidth
	}
	return width
}

// TruncateToWidth truncates text to width columns. With width 0 it returns text.
func TruncateToWidth(text string, width int) string {
	if width == 0 {
		return text
	}
	return truncateRunes(text, width)
}

func (p Palette) wrapCode(code, s string) string {
	if !p.on {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

// Bold returns s as bold text.
func (p Palette) Bold(s string) string { return p.wrapCode("1", s) }

// Dim returns s as faint text.
func (p Palette) Dim(s string) string { return p.wrapCode("2", s) }

// Red returns s as red text.
func (p Palette) Red(s string) string { return p.wrapCode("31", s) }

// Green returns s as green text.
func (p Palette) Green(s string) string { return p.wrapCode("32", s) }

// Yellow returns s as yellow text.
func (p Palette) Yellow(s string) string { return p.wrapCode("33", s) }

// Cyan returns s as cyan text.
func (p Palette) Cyan(s string) string { return p.wrapCode("36", s) }

// Topic colors a topic by its meaning: errors red, new objects green, others blue.
func (p Palette) Topic(name string) string {
	switch {
	case strings.HasSuffix(name, ".error"):
		return p.Red(name)
	case strings.HasSuffix(name, ".created"), strings.HasSuffix(name, ".new"), strings.HasSuffix(name, ".started"):
		return p.Green(name)
	default:
		return p.wrapCode("34", name)
	}
}

// Sanitize replaces control characters, including characters that change the direction of text, so text from the
// network cannot control the terminal.
func Sanitize(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || isHidden(r) || r == 0x2028 || r == 0x2029 {
			return '\uFFFD'
		}
		return r
	}, s)
}

// isHidden reports whether r is DEL, a C1 control, or a format character, which sets the direction of text or has no width.
func isHidden(r rune) bool {
	return r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Cf, r) && !unicode.Is(unicode.Prepended_Concatenation_Mark, r) ||
		unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)
}
