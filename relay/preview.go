package relay

import "context"

// Previewer is a [Sink] that can show what Deliver would send.
type Previewer interface {
	// Preview sends nothing, does not dial, and may be called concurrently with Deliver. The result contains no secret:
	// credentials in addresses and headers are removed or masked, but signatures are shown. Preview may take as long as
	// the start of a plugin.
	Preview(ctx context.Context, d Delivery) (Preview, error)
}

// Preview is one attempt as the destination would see it.
type Preview struct {
	// Method and Target are the request line, such as POST and https://example.com/…. Target has no secret parts.
	Method, Target string
	// Headers are sorted for reading.
	Headers []Header
	// Payload is the exact body.
	Payload []byte
	// Note explains limits of this explanation, such as parts that are missing. It is usually empty.
	Note string
	// Followups are further requests of the same attempt, in order. They have neither a Note nor Followups.
	Followups []Preview
}

// Header is one header line of a request.
type Header struct{ Name, Value string }
