package backbone

import (
	"context"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/cursor"
)

// Since returns up to count notifications behind a position in a partition's log, for a reader that comes back with it.
// Where lost, some of what was behind the position left the log, or the log was set back: list then begins behind from,
// which is another position. Else from is after. In doubt it says lost: a position whose entry is not there any more
// proves nothing about those that followed.
func (b *Backbone) Since(ctx context.Context, partition int, after string, count int) (from string, lost bool, list []relay.Notification, err error) {
	key := b.keys.Log(partition)
	reply, err := b.commands.Do(ctx, "XRANGE", key, after, "+", "COUNT", count+1).Result()
	if err != nil {
		return "", false, nil, explain("read the log", err)
	}
	entries, err := entriesOf(reply)
	if err != nil {
		return "", false, nil, explain("read the log", err)
	}
	if len(entries) > 0 {
		if entries[0].id == after {
			return after, false, notificationsOf(entries[1:]), nil
		}
		if justBefore(entries[0].id) == after {
			return after, false, notificationsOf(entries), nil
		}
	}
	info, err := b.streamInfo(ctx, key)
	if err != nil {
		return "", false, nil, explain("find the beginning of the log", err)
	}
	order := CompareCursors(info.last, after)
	switch {
	case order == 0:
		return after, false, nil, nil
	case after == begin && info.added >= 0 && info.added == info.length: // nothing has ever left it
		return after, false, notificationsOf(entries), nil
	case order < 0 || len(entries) == 0:
		return info.last, true, nil, nil
	default:
		return justBefore(entries[0].id), true, notificationsOf(entries), nil
	}
}

// justBefore is the position right before an entry's.
func justBefore(id string) string {
	at, _ := cursor.ParsePosition(id)
	return at.Before().String()
}
