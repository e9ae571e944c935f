package notify

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hubrelay/hubrelay/internal/netguard"
	"github.com/hubrelay/hubrelay/relay"
)

// Config is what an operator writes under `config`.
type Config struct {
	// URLs are destinations, each a secret. URLFiles are files that hold one each.
	URLs     []string `json:"urls"`
	URLFiles []string `json:"url_files"`
	// AllowCIDRs name the addresses that may be dialled although they are not public.
	AllowCIDRs []string `json:"allow_cidrs"`
}

// service is what is known of one of shoutrrr's.
type service struct {
	hasTitle bool // it has a place for a title of its own
	mentions bool // an @ in its text calls people
	maxBytes int  // bytes of a text
}

func knownServices() map[string]service {
	return map[string]service{
		"discord":    {hasTitle: true, mentions: true, maxBytes: 1900},
		"googlechat": {mentions: true, maxBytes: 4000},
		"gotify":     {hasTitle: true, maxBytes: 8000},
		"matrix":     {maxBytes: 8000},
		"mattermost": {mentions: true, maxBytes: 8000},
		"ntfy":       {hasTitle: true, maxBytes: 3900},
		"pushbullet": {hasTitle: true, maxBytes: 4000},
		"pushover":   {hasTitle: true, maxBytes: 1000},
		"rocketchat": {mentions: true, maxBytes: 4000},
		"teams":      {hasTitle: true, maxBytes: 8000},
		"telegram":   {maxBytes: 3900},
		"zulip":      {mentions: true, maxBytes: 8000},
	}
}

// betterSink names the sink of the daemon that does better what a service of shoutrrr does.
func betterSink(scheme string) string {
	switch scheme {
	case "smtp":
		return "a sink of type email"
	case "generic":
		return "a sink of type webhook"
	case "slack", "pagerduty":
		return "a sink of type " + scheme
	case "logger":
		return "a sink of type stdout or file"
	case "mqtt":
		return "hubrelay-brokers"
	}
	return ""
}

// Validate reports every mistake, joined, without a part of a URL.
func (c *Config) Validate() error {
	var errs []error
	if len(c.URLs)+len(c.URLFiles) == 0 {
		errs = append(errs, &relay.FieldError{Field: "urls", Problem: "is missing, and so is url_files: name a destination, such as [ntfy://ntfy.sh/my-topic]"})
	}
	if _, err := netguard.New(c.AllowCIDRs); err != nil {
		errs = append(errs, err)
	}
	for i, text := range c.URLs {
		if _, _, err := parse(text); err != nil {
			errs = append(errs, fieldError("urls", i, "%v", err))
		}
	}
	return errors.Join(errs...)
}

// fieldError is a mistake in one item of a list.
func fieldError(key string, i int, format string, values ...any) error {
	return &relay.FieldError{Field: key + "." + strconv.Itoa(i), Problem: fmt.Sprintf(format, values...)}
}

// parse reads a URL of shoutrrr's.
func parse(text string) (*url.URL, service, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	if err != nil || u.Scheme == "" {
		return nil, service{}, errors.New("is not a URL in shoutrrr's form, such as ntfy://ntfy.sh/my-topic")
	}
	s, ok := knownServices()[u.Scheme]
	if ok {
		return u, s, nil
	}
	names := make([]string, 0, len(knownServices()))
	for name := range knownServices() {
		names = append(names, name)
	}
	slices.Sort(names)
	scheme := relay.Truncate(u.Scheme, 20)
	switch near := relay.ClosestName(scheme, names); {
	case betterSink(scheme) != "":
		return nil, s, fmt.Errorf("is of the service %s, which is not offered here: use %s", scheme, betterSink(scheme))
	case near != "":
		return nil, s, fmt.Errorf("is of the service %q, which is not known; did you mean %s://?", scheme, near)
	default:
		return nil, s, fmt.Errorf("is of the service %q, which is not offered: choose one of %s", scheme, strings.Join(names, ", "))
	}
}

// maxFile bounds what is read of a file.
const maxFile = 64 << 10

// parseDestinations are the destinations by the names that errors give them.
func (c *Config) parseDestinations() ([]destination, error) {
	var list []destination
	add := func(key string, i int, text string) error {
		u, s, err := parse(text)
		if err != nil {
			return fieldError(key, i, "%v", err)
		}
		list = append(list, destination{name: key + "." + strconv.Itoa(i), url: u, service: s})
		return nil
	}
	for i, text := range c.URLs {
		if err := add("urls", i, text); err != nil {
			return nil, err
		}
	}
	for i, path := range c.URLFiles {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fieldError("url_files", i, "cannot be read: %v", err)
		}
		if len(text) > maxFile {
			return nil, fieldError("url_files", i, "names %s, which is larger than 64 KiB", path)
		}
		if err := add("url_files", i, string(text)); err != nil {
			return nil, err
		}
	}
	return list, nil
}
