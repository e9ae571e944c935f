package relay

// Explainer is what a Sink may be besides: it shows what Deliver would send.
//
// Explain sends nothing, dials nothing and may be called concurrently with Deliver. What it returns holds no secret:
// credentials in addresses and headers are left out or hidden, signatures are shown.
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
}

// Header is one line of a request's header.
type Header struct{ Name, Value string }
