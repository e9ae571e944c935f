package main_test

import (
	"strings"
	"testing"
)

// TestErrors_SuggestSettings uses wrong settings and expects that the error names them.
func TestErrors_SuggestSettings(t *testing.T) {
	t.Parallel()
	d := serve(t, daemonConfig{redis: `url: "memory:"`})
	right := []string{"HUBRELAY_URL=http://" + d.Public, "HUBRELAY_KEY=" + opsKey, "HUBRELAY_HUB=hub-1"}
	for name, tc := range map[string]struct {
		env, args, want string
		code            int
	}{
		"the admin listener for the public one": {
			"HUBRELAY_URL=http://" + d.Health, "publish --topic job.created",
			"server.listen", 1,
		},
		"the public listener for the admin one": {"HUBRELAY_ADMIN=" + d.Public, "connections list", "check --admin", 1},
		"a key of another relay":                {"HUBRELAY_KEY=" + readerKey + "x", "listen", "HUBRELAY_KEY", 1},
		"no hub":                                {"HUBRELAY_HUB=", "publish --topic job.created", "HUBRELAY_HUB", 1},
		"an empty id":                           {"", `jobs show ""`, "empty", 2},
		"a sink whose name came out empty":      {"HUBRELAY_ADMIN=" + d.Admin, `sinks pause ""`, "empty", 2},
	} {
		args := strings.Fields(tc.args)
		for i := range args {
			args[i] = strings.Trim(args[i], `"`)
		}
		out, errOut, code := call(t, append(right, tc.env), "", args...)
		if code != tc.code || out != "" || !strings.Contains(errOut, tc.want) || strings.Count(errOut, "\n") != 1 {
			t.Errorf("%s: ended with %d, want %d and %q:\n%s%s", name, code, tc.code, tc.want, out, errOut)
		}
	}
}
