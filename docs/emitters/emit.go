// Writes an assay dump (JSON lines). Open once, then call Tensor wherever a value is known.
package main

import (
	"encoding/json"
	"math"
	"os"
)

type Dump struct{ out *json.Encoder }

func Open(path, engine string, tokens []int) (*Dump, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	dump := &Dump{json.NewEncoder(file)}
	return dump, dump.out.Encode(map[string]any{"assay_dump": 1, "engine": engine, "tokens": tokens})
}

// Tensor takes a row-major shape: slowest axis first, e.g. [tokens, heads, head_dim].
func (d *Dump) Tensor(name string, shape []int, values []float32) error {
	safe := make([]any, len(values)) // JSON has no NaN: null stands for it
	for i, v := range values {
		if f := float64(v); !math.IsNaN(f) && !math.IsInf(f, 0) {
			safe[i] = v
		}
	}
	return d.out.Encode(map[string]any{"name": name, "shape": shape, "values": safe})
}

func main() {
	path := "dump.jsonl"
	if len(os.Args) > 1 {
		path = os.Args[1]
	}
	dump, err := Open(path, "example-go", []int{1, 450})
	if err == nil {
		err = dump.Tensor("embd", []int{2, 3}, []float32{0.1, -2.5, 3e-7, 4, 5.25, -6})
	}
	if err != nil {
		panic(err)
	}
}
