;;;; The well-known types and their Lisp counterparts.

(in-package #:clgrpc.tests.protobuf)

(defun parts (message)
  "The seconds and nanoseconds of MESSAGE, a Timestamp or Duration."
  (list (field-value message :seconds) (field-value message :nanos)))

(test timestamps
  (is (equal '(0 0) (parts (unix-time-timestamp 0))))
  (is (equal '(-1 500000000) (parts (unix-time-timestamp -1/2))))
  (is (equal '(1 100000000) (parts (unix-time-timestamp 1.1d0))))
  (is (equal '(-62135596800 0) (parts (unix-time-timestamp -62135596800))))
  (is (equal '(253402300799 999999999)
             (parts (unix-time-timestamp (- 253402300800 (expt 10 -9))))))
  (signals misuse (unix-time-timestamp -62135596801))
  (signals misuse (unix-time-timestamp 253402300800))
  (is (= -1/2 (timestamp-unix-time (unix-time-timestamp -1/2))))
  (let ((time (encode-universal-time 1 2 3 4 5 2026 0)))
    (is (equal (list time 7)
               (multiple-value-list
                (timestamp-universal-time (universal-time-timestamp time :nanoseconds 7)))))
    (is (equal (list (1- time) 999999999)
               (multiple-value-list
                (timestamp-universal-time (universal-time-timestamp time :nanoseconds -1)))))))

(test durations
  (is (equal '(1 500000000) (parts (seconds-duration 3/2))))
  (is (equal '(-1 -500000000) (parts (seconds-duration -1.5))))
  (is (equal '(0 1) (parts (seconds-duration 1.4d-9))))
  (is (= -3/2 (duration-in-seconds (seconds-duration -3/2))))
  (is (equal '(315576000000 0) (parts (seconds-duration 315576000000))))
  (signals misuse (seconds-duration 315576000001)))

(test any-packs-and-unpacks
  (let* ((message (all :f3 7))
         (any (any-pack message)))
    (is (equal "type.googleapis.com/clgrpc.test.All" (google.protobuf:any-type-url any)))
    (is (equal "clgrpc.test.All" (any-type-name any)))
    (is (message= message (any-unpack any)))
    (is (message= message (any-unpack any 'clgrpc.test:all)))
    (is (null (any-unpack any 'google.protobuf:duration)))
    (is (equal "/clgrpc.test.All"
               (google.protobuf:any-type-url (any-pack message :prefix ""))))
    (is (message= any (any-unpack (any-pack any)))))
  (signals protobuf-error (any-unpack (google.protobuf:make-any)))
  (signals protobuf-error (any-unpack (google.protobuf:make-any :type-url "x/no.such.Type")))
  (signals protobuf-error
    (any-unpack (google.protobuf:make-any :type-url "x/clgrpc.test.All" :value #(255)))))

(test data-goes-into-a-struct-and-back
  (let ((data `(("name" . "Ada") ("born" . 1815d0) ("dead" . :true) ("empty") ("none" . :null)
                ("tags" . #("a" :false #() (("deep" . 0.5d0)))))))
    (is (equalp data (struct-alist (alist-struct data))))
    (is (equalp data (struct-alist (round-trip (alist-struct data))))))
  (is (eql 2d0 (value-data (data-value 2))))
  (is (eq :true (value-data (data-value t))))
  (is (null (value-data (data-value nil))))
  (is (eq :null (value-data (google.protobuf:make-value))))
  (is (equalp #("x") (list-value-vector (vector-list-value '#("x")))))
  (signals misuse (data-value 'symbol))
  (signals misuse (data-value sb-ext:double-float-positive-infinity)))
