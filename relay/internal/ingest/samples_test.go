package ingest

import (
	"testing"

	"github.com/hubrelay/hubrelay/internal/samples"
	"github.com/hubrelay/hubrelay/relay"
)

// TestDecode_AcceptsSamples decodes the sample notification of each topic unchanged.
func TestDecode_AcceptsSamples(t *testing.T) {
	t.Parallel()
	catalog, err := relay.NewCatalog(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range catalog.Names() {
		if _, bad := NewDecoder(catalog).Decode(samples.ForTopic(topic).Data, Defaults{AnyAccount: true}); bad != nil {
			t.Errorf("%s: %v", topic, bad)
		}
	}
}
