package store

import (
	"testing"

	"github.com/hubrelay/hubrelay/internal/keyspace"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	single, _ := keyspace.New("hubrelay", 1, false)
	cluster, _ := keyspace.New("hubrelay", 1, true)
	for _, c := range []struct{ got, want string }{
		{DeadLettersKey(single, "billing"), "hubrelay:deadletters:billing"},
		{RetryKey(single, "billing"), "hubrelay:retry:billing"},
		{RateKey(single, "billing"), "hubrelay:rate:billing"},
		{DigestKey(single, "billing", "7f"), "hubrelay:digest:billing:7f"},
		{DigestKey(cluster, "billing", "7f"), "hubrelay:digest:{billing}:7f"},
		{DigestsKey(cluster, "billing"), "hubrelay:digests:{billing}"},
		{DigestCountKey(cluster, "billing"), "hubrelay:digestcount:{billing}"},
		{DigestBytesKey(cluster, "billing"), "hubrelay:digestbytes:{billing}"},
		{BatchedIDsKey(cluster, "billing"), "hubrelay:batchids:{billing}"},
		{BatchLogKey(cluster, "billing"), "hubrelay:batchlog:{billing}"},
		{RetryKey(cluster, "billing"), "hubrelay:retry:{billing}"},
		{FailureStartKey(cluster, "billing"), "hubrelay:failing:{billing}"},
		{RecordsKey(cluster, "billing"), "hubrelay:records:{billing}"},
		{OrderKey(single, "billing"), "hubrelay:order:billing"},
		{OrderKey(cluster, "billing"), "hubrelay:order:{billing}"},
		{OrderMembersKey(cluster, "billing"), "hubrelay:ordermembers:{billing}"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}
