package tmpl

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// MaxLink is the maximum length of a link in a message, in bytes.
const MaxLink = 2000

// CheckLink returns an error if the rendered text is not a valid link for a message. White space alone means that the
// message has no link.
func CheckLink(text []byte) error {
	link := strings.TrimSpace(string(text))
	if link == "" {
		return nil
	}
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" ||
		strings.ContainsAny(link, "<>| \n\t") || len(link) > MaxLink {
		return fmt.Errorf(
			"makes %q, which is no address: start it with https:// and apply urlquery to values from producers",
			relay.Truncate(link, 100))
	}
	return nil
}
