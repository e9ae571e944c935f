package webhook

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hubrelay/hubrelay/relay"
)

// batched returns the notifications of gathered as a batch.
func batched() relay.Delivery {
	d := gathered()
	d.Digest, d.Batch = nil, true
	return d
}

// Each notification is there with its ID and time, or byte for byte without metadata.
func TestBatchGolden(t *testing.T) {
	t.Parallel()
	for _, format := range []string{formatNotification, formatStandard} {
		got, err := encodeBody(format, metadataBatches, batched())
		if err != nil {
			t.Fatal(err)
		}
		plain, err := encodeBody(format, "false", batched())
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", "batch_"+format+".json")
		if *update {
			if err := os.WriteFile(path, append(bytes.Clone(got), '\n'), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
			t.Errorf("run go test -update and read the difference:\n%s", diff)
		}
		for _, n := range batched().Notifications {
			if !bytes.Contains(plain, n.Data) {
				t.Errorf("%s: %s is not there as it was published", format, n.Data)
			}
		}
	}
}
