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

// asyncapi.yaml must document all members of events.
func TestEvents_MatchAsyncAPI(t *testing.T) {
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
		value      any
		documented object
	}{{eventObject{}, schemas.Notification.Properties.Object}, {relay.JobTask{}, schemas.JobTask}} {
		var members []string
		for i, kind := 0, reflect.TypeOf(c.value); i < kind.NumField(); i++ {
			name, _, _ := strings.Cut(kind.Field(i).Tag.Get("json"), ",")
			members = append(members, name)
		}
		slices.Sort(members)
		documented := slices.Sorted(maps.Keys(c.documented.Properties))
		if !slices.Equal(members, documented) {
			t.Errorf("%T has members %v, asyncapi.yaml has %v", c.value, members, documented)
		}
	}
}
