package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math/rand"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	restwatch "k8s.io/client-go/rest/watch"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/randfill"
)

func scheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := kueue.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// both are client-go's decoder, and the one of this package.
func both(t testing.TB) (usual, fast runtime.Decoder) {
	t.Helper()
	s := scheme(t)
	info, _ := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(s).WithoutConversion().SupportedMediaTypes(), runtime.ContentTypeJSON)
	return info.Serializer, newCodecs(s).SupportedMediaTypes()[0].Serializer
}

// decoded is what a decoder makes of a text, without what is passed over.
func decoded(d runtime.Decoder, text []byte) (runtime.Object, error) {
	o, _, err := d.Decode(text, nil, nil)
	if wl, ok := o.(*kueue.Workload); ok {
		wl.ManagedFields = nil
	}
	return o, err
}

func TestAWorkloadIsDecodedAsClientGoDecodesIt(t *testing.T) {
	usual, fast := both(t)
	s := scheme(t)
	f := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(1), serializer.NewCodecFactory(s)).NilChance(.3).NumElements(1, 3)
	f.Funcs(func(*[]metav1.ManagedFieldsEntry, randfill.Continue) {}) // passed over
	for range 300 {
		wl := &kueue.Workload{}
		f.Fill(wl)
		wl.APIVersion, wl.Kind = kueue.SchemeGroupVersion.String(), "Workload"
		text, err := json.Marshal(wl)
		if err != nil {
			t.Fatal(err)
		}
		want, err := decoded(usual, text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decoded(fast, text)
		if err != nil || !equality.Semantic.DeepEqual(got, want) {
			t.Fatalf("%v of\n%s\nwas read otherwise:\n%v\n%v", err, text, got, want)
		}
	}
}

// strict fails the test where client-go's decoder is asked.
type strict struct {
	runtime.Serializer
	t *testing.T
}

func (s strict) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	s.t.Fatalf("left to client-go:\n%s", data)
	return nil, nil, nil
}

// What is refused is left to client-go, which would hide that all is.
func TestWhateverAWorkloadHoldsIsDecodedInOnePass(t *testing.T) {
	_, fast := both(t)
	mine, ok := fast.(*decoder)
	if !ok {
		t.Fatalf("decoded by %T", fast)
	}
	mine.Serializer = strict{mine.Serializer, t}
	f := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(3), serializer.NewCodecFactory(scheme(t))).NilChance(0).NumElements(1, 2)
	list := &kueue.WorkloadList{TypeMeta: metav1.TypeMeta{APIVersion: kueue.SchemeGroupVersion.String(), Kind: "WorkloadList"}, Items: make([]kueue.Workload, 1)}
	wl := &list.Items[0]
	f.Fill(wl)
	wl.APIVersion, wl.Kind = kueue.SchemeGroupVersion.String(), "Workload"
	for _, o := range []runtime.Object{wl, list} {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := fast.Decode(text, nil, nil); err != nil {
			t.Error(err)
		}
		event, err := json.Marshal(metav1.WatchEvent{Type: "ADDED", Object: runtime.RawExtension{Raw: text}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := fast.Decode(event, nil, &metav1.WatchEvent{}); err != nil {
			t.Error(err)
		}
	}
}

// oddities are texts that decoders understand in more than one way.
var oddities = []string{
	``, `null`, `{}`, `[]`, `{"kind":"Workload"}`, `{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload"}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload"} {}`,
	`{"apiVersion":"kueue.x-k8s.io/v9","kind":"Workload"}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Nothing"}`,
	`{"apiVersion":1,"kind":"Workload"}`,
	`{"metadata":{"name":"late"},"kind":"Workload","apiVersion":"kueue.x-k8s.io/v1beta2"}`,
	`{"apiVersion":"v1","kind":"Status","status":"Failure","code":410}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","Metadata":{"name":"capital"},"SPEC":{"active":true}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","metadata":{"name":"a","name":"b"}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","metadata":null,"spec":null,"status":{"conditions":null}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","spec":{"priority":1.5}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","spec":{"priority":99999999999}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","spec":{"priority":"1"}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","spec":{"unknown":{"a":[1,2,{"b":null}]},"active":false}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","metadata":{"annotations":{"a":"\ud800 \u0000 ` + "\xff" + `"}}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","metadata":{"managedFields":[{"manager":"m","fieldsV1":{"f:a":{}}}],"name":"kept"}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","metadata":{"creationTimestamp":"yesterday"}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","status":{"admission":{"clusterQueue":"q","podSetAssignments":[{"name":"main","resourceUsage":{"cpu":1,"memory":"2Gi"}}]}}}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"WorkloadList","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a","managedFields":[{"manager":"m","fieldsV1":{"f:a":{}}}]}},{"metadata":{"name":"b"}}]}`,
	`{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"ClusterQueue","spec":{"cohortName":"c"}}`,
}

// FuzzDecode holds the decoder against client-go's: the same object, or none. What
// is passed over may be anything.
func FuzzDecode(f *testing.F) {
	for _, text := range oddities {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		usual, fast := both(t)
		want, err := decoded(usual, text)
		if bytes.Contains(text, []byte("managedFields")) && err != nil {
			return
		}
		got, mine := decoded(fast, text)
		if (err == nil) != (mine == nil) {
			t.Fatalf("%q: client-go says %v, and this %v", text, err, mine)
		}
		if err == nil && !equality.Semantic.DeepEqual(got, want) {
			t.Fatalf("%q was read otherwise:\n%v\n%v", text, got, want)
		}
	})
}

func TestWhatIsDecodedReplacesWhatWasThere(t *testing.T) {
	_, fast := both(t)
	wl := &kueue.Workload{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"old": "yes"}}}
	if _, _, err := fast.Decode([]byte(oddities[5]), nil, wl); err != nil {
		t.Fatal(err)
	}
	if len(wl.Labels) > 0 {
		t.Errorf("labels are %v", wl.Labels)
	}
}

// trickle hands out a stream a few bytes at a time, and ends as it is told.
type trickle struct {
	text string
	end  error
}

func (r *trickle) Read(p []byte) (int, error) {
	if r.text == "" {
		return 0, r.end
	}
	n := copy(p[:min(len(p), 7)], r.text)
	r.text = r.text[n:]
	return n, nil
}

func (*trickle) Close() error { return nil }

func TestAWatchIsReadMessageByMessage(t *testing.T) {
	long := strings.Repeat("long ", 1000)
	text := `{"type":"ADDED","object":` + oddities[5] + "}\n" +
		`{"type":"MODIFIED","object":{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","metadata":{"name":"` + long + `"}}}` + "\n" +
		`{"type":"BOOKMARK","object":{"apiVersion":"kueue.x-k8s.io/v1beta2","kind":"Workload","metadata":{"resourceVersion":"12","annotations":{"k8s.io/initial-events-end":"true"}}}}` + "\n" +
		`{"type":"ERROR","object":{"apiVersion":"v1","kind":"Status","code":410,"reason":"Expired"}}` + "\n"
	broken := errors.New("connection reset")
	for _, c := range []struct {
		name, text string
		end, want  error
	}{
		{"that ends between two messages", text, io.EOF, io.EOF},
		{"that ends in a message", text + `{"type":`, io.EOF, io.ErrUnexpectedEOF},
		{"that breaks", text, broken, broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			info := newCodecs(scheme(t)).SupportedMediaTypes()[0]
			d := restwatch.NewDecoder(streaming.NewDecoder(info.StreamSerializer.NewFrameReader(&trickle{c.text, c.end}), info.StreamSerializer), info.Serializer)
			for _, want := range []string{"ADDED", "MODIFIED", "BOOKMARK", "ERROR"} {
				kind, o, err := d.Decode()
				if err != nil || string(kind) != want {
					t.Fatalf("%s instead of %s, %v", kind, want, err)
				}
				switch o := o.(type) {
				case *kueue.Workload:
					if want == "MODIFIED" && o.Name != long || want == "BOOKMARK" && o.ResourceVersion != "12" {
						t.Errorf("%s brought %v", want, o)
					}
				case *metav1.Status:
					if o.Code != 410 {
						t.Errorf("code %d", o.Code)
					}
				default:
					t.Errorf("%s brought %T", want, o)
				}
			}
			if _, _, err := d.Decode(); !errors.Is(err, c.want) {
				t.Errorf("it ended with %v, not %v", err, c.want)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	usual, fast := both(b)
	s := scheme(b)
	wl := &kueue.Workload{}
	fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(2), serializer.NewCodecFactory(s)).NilChance(.7).NumElements(1, 2).Fill(wl)
	wl.APIVersion, wl.Kind = kueue.SchemeGroupVersion.String(), "Workload"
	text, err := json.Marshal(wl)
	if err != nil {
		b.Fatal(err)
	}
	text = bytes.TrimSpace(text)
	for name, d := range map[string]runtime.Decoder{"usual": usual, "fast": fast} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := d.Decode(text, nil, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
