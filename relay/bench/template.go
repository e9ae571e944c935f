package main

import (
	"bytes"
	"context"
	"fmt"
	"text/template"
	"time"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/internal/tmpl"
)

const (
	templateRounds = 9
	templateEvents = 2000
	// templateSource is a typical body.
	templateSource = `{"text": {{ printf "%s: %s" .Meaning .Object.Error | toJson }}, "topic": "{{ .Topic | toUpper }}",
 "at": "{{ .Time | tz "UTC" | date "2006-01-02 15:04" }}", "hub": {{ toJson .Hub }},
 "containers": [{{ range $i, $c := .Context.Containers }}{{ if $i }},{{ end }}{{ toJson $c }}{{ end }}]}
`
	// templateFloor has the same number of actions, without functions of this repository.
	templateFloor = `{"text": "{{ .Meaning }}: {{ .Error }}", "topic": "{{ .Topic }}",
 "at": "{{ .At }}", "hub": "{{ .Hub }}",
 "containers": [{{ range $i, $c := .Containers }}{{ if $i }},{{ end }}"{{ $c }}"{{ end }}]}
`
)

// measureTemplate renders a body for each event. The best of several rounds counts.
func measureTemplate(ctx context.Context, _ *rig) ([]row, error) {
	parsed, err := tmpl.Parse(templateSource, tmpl.Options{})
	if err != nil {
		return nil, err
	}
	d := samples.Deliveries([]string{"container.error"})[0]
	ours, err := timePerEvent(func() error {
		data, err := tmpl.NewData(d, "hook", nil)
		if err != nil {
			return err
		}
		_, err = parsed.Render(ctx, data)
		return err
	})
	if err != nil {
		return nil, err
	}
	bare, err := template.New("").Parse(templateFloor)
	if err != nil {
		return nil, fmt.Errorf("parse the floor: %w", err)
	}
	values := map[string]any{
		"Meaning": "Something went wrong with a container", "Error": "no space left on device",
		"Topic": "container.error", "At": "2026-11-22 01:02", "Hub": "6922f0000123456789abcd03",
		"Containers": []string{"6922f0000123456789abcd02"},
	}
	var out bytes.Buffer
	floor, err := timePerEvent(func() error { out.Reset(); return bare.Execute(&out, values) })
	if err != nil {
		return nil, err
	}
	return []row{newRow("a template", ours, "us an event", "text/template alone", floor).atMost(20)}, nil
}

// timePerEvent returns the microseconds per call in the best round.
func timePerEvent(do func() error) (float64, error) {
	best := time.Duration(1 << 62)
	for range templateRounds {
		startedAt := time.Now()
		for range templateEvents {
			if err := do(); err != nil {
				return 0, err
			}
		}
		best = min(best, time.Since(startedAt))
	}
	return float64(best.Nanoseconds()) / 1000 / templateEvents, nil
}
