package migration

import (
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/hubrelay/hubrelay/relay"
)

// The document of the stream names what events hold.
func TestEventsAreDocumented(t *testing.T) {
	t.Parallel()
	type object struct{ Properties map[string]any }
	var doc struct {
		Components struct {
			Schemas struct {
				Notification struct {
					Properties struct{ Object object }
				} `yaml:"Notification"`
				JobTask object `yaml:"JobTask"`
			}
		}
	}
	text, err := os.ReadFile("../publicapi/asyncapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	schemas := doc.Components.Schemas
	for _, c := range []struct {
		of   any
		said object
	}{{eventObject{}, schemas.Notification.Properties.Object}, {relay.JobTask{}, schemas.JobTask}} {
		var members []string
		for i, of := 0, reflect.TypeOf(c.of); i < of.NumField(); i++ {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			members = append(members, name)
		}
		slices.Sort(members)
		said := slices.Sorted(maps.Keys(c.said.Properties))
		if !slices.Equal(members, said) {
			t.Errorf("%T has %v, the document says %v", c.of, members, said)
		}
	}
}
