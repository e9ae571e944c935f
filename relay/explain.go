package relay

// Explainer is what a Sink may be besides: it shows what Deliver would send.
//
// Explain sends nothing, dials nobody and may be called concurrently with Deliver. What it returns holds no secret:
// credentials in addresses and headers are left out or hidden, signatures are shown. It may take as long as a plugin to
// start.
type Explainer interface {
	Explain(d Delivery) (Explanation, error)
}

// Explanation is one attempt as the far side would see it.
type Explanation struct {
	// Method and Target say what is called, such as POST and https://example.com/…, the target without its secret parts.
	Method, Target string
	// Headers are in the order in which people want to read them.
	Headers []Header
	// Payload is the body, byte for byte.
	Payload []byte
	// Note says what is to be known of all this, such as why it is less than the far side would see; mostly empty.
	Note string
	// Followups is what the attempt sends besides, in order, for sinks that send more than one thing. None has a Note or an Also.
	Followups []Explanation
}

// Header is one line of a request's header.
type Header struct{ Name, Value string }
