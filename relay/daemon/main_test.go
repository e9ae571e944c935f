package daemon

import (
	"os"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.RunParallel(8) // the tests mostly wait
	os.Exit(m.Run())
}
