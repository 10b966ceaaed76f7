package wire

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
)

// lenient is what client-go's decoder forgives: the API server answers for what
// it sends.
var lenient = json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))

// alone are the options for an object that comes alone.
var alone = json.JoinOptions(lenient, json.WithUnmarshalers(json.UnmarshalFromFunc(skipManagers)))

func skipManagers(d *jsontext.Decoder, _ *[]metav1.ManagedFieldsEntry) error { return d.SkipValue() }

// codecs is client-go's JSON for a scheme, with the decoder of this package.
type codecs struct {
	runtime.NegotiatedSerializer
	media []runtime.SerializerInfo
}

func newCodecs(scheme *runtime.Scheme) runtime.NegotiatedSerializer {
	usual := serializer.NewCodecFactory(scheme).WithoutConversion()
	info, _ := runtime.SerializerInfoForMediaType(usual.SupportedMediaTypes(), runtime.ContentTypeJSON)
	fast := &decoder{Serializer: info.Serializer, scheme: scheme}
	info.Serializer = fast
	info.StreamSerializer = &runtime.StreamSerializerInfo{EncodesAsText: true, Serializer: fast, Framer: framer{info.StreamSerializer.Framer}}
	return &codecs{usual, []runtime.SerializerInfo{info}}
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (c *codecs) SupportedMediaTypes() []runtime.SerializerInfo { return c.media }

// decoder decodes messages of watches and objects of Kueue's group by itself, and
// has client-go's decode the rest.
type decoder struct {
	runtime.Serializer
	scheme *runtime.Scheme
}

// Decode implements runtime.Decoder. An object that is given must be empty.
func (d *decoder) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if event, ok := into.(*metav1.WatchEvent); ok {
		if json.Unmarshal(data, event, lenient) == nil {
			return event, &schema.GroupVersionKind{}, nil
		}
		*event = metav1.WatchEvent{}
	}
	kind, ok := kindOf(data)
	if !ok || kind.Group != kueue.SchemeGroupVersion.Group {
		return d.Serializer.Decode(data, defaults, into)
	}
	object, err := d.scheme.New(kind)
	if err != nil {
		return d.Serializer.Decode(data, defaults, into)
	}
	how := alone
	if meta.IsListType(object) {
		how = lenient
	}
	if json.Unmarshal(data, object, how) != nil {
		return d.Serializer.Decode(data, defaults, into)
	}
	switch into := into.(type) {
	case *kueue.Workload:
		if object, ok := object.(*kueue.Workload); ok {
			*into = *object
			return into, &kind, nil
		}
	case *kueue.WorkloadList:
		if object, ok := object.(*kueue.WorkloadList); ok {
			*into = *object
			return into, &kind, nil
		}
	}
	return object, &kind, nil
}

// usual is how the API server begins a Workload.
var usual = []byte(`{"apiVersion":"` + kueue.SchemeGroupVersion.String() + `","kind":"Workload",`)

// kindOf reads the kind of an object. The API server names it first.
func kindOf(data []byte) (schema.GroupVersionKind, bool) {
	if bytes.HasPrefix(data, usual) {
		return kueue.SchemeGroupVersion.WithKind("Workload"), true
	}
	version, kind := "", ""
	d := jsontext.NewDecoder(bytes.NewBuffer(data), lenient)
	if t, err := d.ReadToken(); err != nil || t.Kind() != '{' {
		return schema.GroupVersionKind{}, false
	}
	for version == "" || kind == "" {
		name, err := d.ReadToken()
		if err != nil || name.Kind() != '"' {
			return schema.GroupVersionKind{}, false
		}
		switch name.String() {
		case "apiVersion":
			err = json.UnmarshalDecode(d, &version)
		case "kind":
			err = json.UnmarshalDecode(d, &kind)
		default:
			err = d.SkipValue()
		}
		if err != nil {
			return schema.GroupVersionKind{}, false
		}
	}
	return schema.FromAPIVersionAndKind(version, kind), true
}
