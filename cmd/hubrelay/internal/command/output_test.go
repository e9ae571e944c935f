package command_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"github.com/hubrelay/hubrelay/cmd/hubrelay/internal/command"
)

// entry has texts that YAML could read as other types.
type entry struct {
	ID    string   `json:"id"`
	Count int64    `json:"count"`
	Texts []string `json:"texts"`
	Next  *string  `json:"next"`
}

func newEntry(id string) entry {
	return entry{ID: id, Count: 1<<53 + 1, Texts: []string{
		"", "null", "yes", "0123", "1e3", "a: b", "- x", "2026-11-27T08:00:00Z", "a\nb\n", "\x1b[31m", "\u202e", "#", "{", "<&>",
	}}
}

func newOutput(t *testing.T, args ...string) *command.Output {
	t.Helper()
	var o command.Output
	cmd := &cobra.Command{}
	o.Register(cmd.Flags())
	if err := cmd.Flags().Parse(args); err != nil {
		t.Fatal(err)
	}
	return &o
}

func TestOutput_List(t *testing.T) {
	t.Parallel()
	decodeLines := func(text []byte) ([]entry, error) {
		var list []entry
		decoder := json.NewDecoder(strings.NewReader(string(text)))
		for decoder.More() {
			var e entry
			if err := decoder.Decode(&e); err != nil {
				return nil, err
			}
			list = append(list, e)
		}
		return list, nil
	}
	decodeJSON := func(text []byte) (list []entry, err error) { return list, json.Unmarshal(text, &list) }
	decodeYAML := func(text []byte) (list []entry, err error) { return list, yaml.Unmarshal(text, &list) }
	for flag, decode := range map[string]func([]byte) ([]entry, error){
		"--json": decodeLines, "-ojsonl": decodeLines, "-ojson": decodeJSON, "-oyaml": decodeYAML,
	} {
		for _, want := range [][]entry{nil, {newEntry("a")}, {newEntry("a"), newEntry("b"), newEntry("c")}} {
			var out strings.Builder
			list := newOutput(t, flag).NewList(&out)
			for _, e := range want {
				if err := list.Write(e); err != nil {
					t.Fatal(err)
				}
			}
			if err := list.Close(); err != nil {
				t.Fatal(err)
			}
			got, err := decode([]byte(out.String()))
			if err != nil || len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("%s: got %+v, %v, want %+v, from\n%s", flag, got, err, want, out.String())
			}
			if lines := strings.Count(out.String(), "\n"); strings.HasPrefix(flag, "--json") && lines != len(want) {
				t.Errorf("%s: got %d lines, want %d", flag, lines, len(want))
			}
		}
	}
}

func TestOutput_Print(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]string{
		"-ojson": `{"a":"<&>"}` + "\n", "-ojsonl": `{"a":"<&>"}` + "\n", "-oyaml": "---\na: \"<&>\"\n",
	} {
		var out strings.Builder
		o := newOutput(t, flag)
		if err := o.Print(&out, map[string]string{"a": "<&>"}); err != nil || out.String() != want || o.IsTable() {
			t.Errorf("%s: got %q, %v, want %q", flag, out.String(), err, want)
		}
	}
}

func TestOutput_CheckStream(t *testing.T) {
	t.Parallel()
	cmd := &cobra.Command{Use: "tail"}
	for _, flag := range []string{"-ojsonl", "-oyaml", "-otable"} {
		if err := newOutput(t, flag).CheckStream(cmd); err != nil {
			t.Errorf("%s: %v", flag, err)
		}
	}
	var usage *command.UsageError
	if err := newOutput(t, "-ojson").CheckStream(cmd); !errors.As(err, &usage) {
		t.Errorf("-o json: got %v, want a usage error", err)
	}
}
