;;;; See src/protobuf/codec/float.lisp.

(in-package #:clgrpc.tests.protobuf)

(test ratios-given-to-fields-are-rounded-to-the-nearest
  (flet ((held (field value)
           (let ((message (all)))
             (setf (field-value message field) value)
             (field-value message field))))
    (is (eql 9.766130757749266d15 (held "f1" 97661307577492651/10)))
    (is (eql 9007199254740994d0 (held "f1" (+ (expt 2 53) 1 (expt 10 -60)))))
    (is (eql (float (+ (expt 2 200) (expt 2 148)) 1d0)
             (held "f1" (+ (expt 2 200) (expt 2 147) 1))))
    (is (eql 16777218f0 (held "f2" (+ (expt 2 24) 1 (expt 10 -30)))))
    (is (eql least-positive-single-float (held "f2" (expt 10 -45))))
    (is (eql sb-ext:double-float-negative-infinity (held "f1" (- (expt 10 309)))))
    (is (eql sb-ext:single-float-positive-infinity (held "f2" (expt 10 39))))))

(test floats-at-the-edges
  (flet ((single (value) (clgrpc.test:all-f2 (all :f2 value))))
    (is (eql sb-ext:single-float-positive-infinity (single 1d300)))
    (is (eql sb-ext:single-float-negative-infinity (single sb-ext:double-float-negative-infinity)))
    (is (eql most-positive-single-float (single (float most-positive-single-float 1d0))))
    (is (eql 0f0 (single 1d-300)))
    (is-true (sb-ext:float-nan-p (single (protobuf::double-nan)))))
  (is-true (sb-ext:float-nan-p (clgrpc.test:all-f1 (round-trip (all :f1 (protobuf::double-nan)))))))
