package tmpl

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
)

// MaxLink bounds an address in a message, in bytes.
const MaxLink = 2000

// CheckLink says where a text that a template rendered is no address which a message may lead to. Nothing but white space stands
// for no link.
func CheckLink(text []byte) error {
	link := strings.TrimSpace(string(text))
	if link == "" {
		return nil
	}
	u, err := url.Parse(link)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || strings.ContainsAny(link, "<>| \n\t") || len(link) > MaxLink {
		return fmt.Errorf("makes %q, which is no address: begin with https:// and put urlquery behind what a producer wrote", relay.Truncate(link, 100))
	}
	return nil
}
