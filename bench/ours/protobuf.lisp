;;;; Encoding and decoding by generated coders, beside Go's (protobuf.go). Loaded after
;;;; scripts/load.lisp by bench/parts/protobuf.py, this saves a program, as bin/clgrpc is one, in
;;;; the file CLGRPC_PROGRAM; Go's side is a program, too. The program writes the serialized form of
;;;; every row's message to the directory that is its argument, prints "ready", and then answers
;;;; lines of standard input.
;;;;
;;;; The nursery is small enough to stay in the cache, like the heap with which Go begins: here a
;;;; collection costs a quarter of a millisecond, and memory that is not in the cache costs more.
;;;;
;;;; A line is ROW OPERATION MILLISECONDS, where OPERATION is encode or decode; the answer is a line
;;;; of JSON with the nanoseconds of CPU and the octets consed per operation, garbage collections
;;;; included, and the sum over all fields that were read, which both programs must agree on.

(in-package #:clgrpc.scripts)

(load-strictly "clgrpc/protobuf")

(defpackage #:clgrpc.bench
  (:use #:cl)
  (:local-nicknames (#:protobuf #:clgrpc.protobuf)))

(in-package #:clgrpc.bench)

(defmacro define-messages ()
  `(protobuf:define-proto ,(namestring (merge-pathnames "proto/bench/protobuf.proto"
                                                        clgrpc.scripts:*root*))))
(define-messages)

(defpackage #:clgrpc.bench.messages
  (:use #:cl)
  (:local-nicknames (#:bench #:clgrpc.bench) (#:pb #:clgrpc.bench.protobuf)
                    (#:protobuf #:clgrpc.protobuf)))

(in-package #:clgrpc.bench.messages)

;;; The message of each row

(defun place (i)
  (pb:make-place :latitude (+ 407838351 (* 1000 i)) :longitude (- -746143763 (* 1000 i))))

(defun item (i)
  (pb:make-item :id (+ 1000000 i) :name (format nil "item number ~D" i) :place (place i)
                :sold (evenp i) :sizes (list i (* 3 i) (* 100 i))))

(defun mixed ()
  (pb:make-mixed
   :id 12345 :serial -987654321987 :flags #xF0F0F0F0 :mask #xFEDCBA9876543210 :delta -77
   :offset -123456789012 :check #xDEADBEEF :hash #x0123456789ABCDEF :shift -5 :moment -6
   :ratio 0.5f0 :score 1234.25d0 :active t :title "A message with a bit of everything in it"
   :token (loop for i below 64 collect (mod (* 37 i) 256)) :kind :odd :place (place 3)
   :note "optional, but here" :word "chosen" :counts (loop for i below 40 collect (* i i))
   :tags (loop for i below 12 collect (format nil "tag-~D" (* i 1000)))
   :items (loop for i from 50 below 62 collect (item i))))

(defun maps ()
  (pb:make-maps
   :counts (loop for i below 200 collect (cons (format nil "counter/~D" i) (* i 17)))
   :names (loop for i below 200 collect (cons (* i 31) (format nil "name of ~D" i)))
   :places (loop for i below 100 collect (cons (format nil "place-~D" i) (place i)))))

(defun ints ()
  (pb:make-ints :small (loop for i below 4000 collect (* i (if (zerop (mod i 5)) 70000 1)))
                :large (loop for i below 4000 collect (* i i 1234567))
                :deltas (loop for i below 4000 collect (if (evenp i) (- i) (* 3 i)))))

(defun texts (control)
  (pb:make-texts :texts (loop for i below 1000 collect (format nil control i (* i i)))))

(defparameter *rows*
  (list (cons "feature" (pb:make-feature :name "Patriots Path, Mendham, NJ 07945, USA"
                                         :location (place 0)))
        (cons "mixed" (mixed))
        (cons "list" (pb:make-list :items (loop for i below 2050 collect (item i))))
        (cons "blob" (pb:make-blob :data (loop for i below 100000 collect (mod (* 7 i) 256))))
        (cons "maps" (maps))
        (cons "ints" (ints))
        (cons "doubles" (pb:make-doubles :values (loop for i below 10000 collect (* i 0.5d0))))
        (cons "ascii" (texts "a line of text, number ~D, squared ~D"))
        (cons "unicode" (texts "eine Zeile für Ödön, Nº ~D, в квадрате ~D"))))

;;; Reading every field

(defmacro define-reader (name (message) &body forms)
  "Define NAME to return the sum, modulo 2^32, of FORMS."
  `(defun ,name (,message)
     (declare (optimize (speed 1) (safety 1)))
     (let ((sum 0))
       (declare (type (unsigned-byte 32) sum))
       (flet ((add (value) (setf sum (ldb (byte 32 0) (+ sum (the fixnum value))))))
         (declare (inline add))
         ,@(loop for form in forms collect `(add ,form)))
       sum)))

(defmacro sum-of ((element type vector) form)
  "The sum, modulo 2^62, of FORM for each ELEMENT of VECTOR, of TYPE, which accessors promise."
  `(let ((vector ,vector) (sum 0))
     (declare (type (simple-array ,type (*)) vector) (type (unsigned-byte 62) sum))
     (loop for ,element of-type ,type across vector
           do (setf sum (ldb (byte 62 0) (+ sum (the fixnum ,form)))))
     sum))

(declaim (inline low text))
(defun low (integer)
  (declare (type (or (signed-byte 64) (unsigned-byte 64)) integer))
  (ldb (byte 32 0) integer))

(defun text (string)
  (declare (type simple-string string))
  (if (zerop (length string)) 0 1))

(define-reader read-place (place)
  (pb:place-latitude place)
  (pb:place-longitude place))

(define-reader read-feature (feature)
  (text (pb:feature-name feature))
  (read-place (pb:feature-location feature)))

(define-reader read-item (item)
  (low (pb:item-id item))
  (text (pb:item-name item))
  (read-place (pb:item-place item))
  (if (pb:item-sold item) 1 0)
  (sum-of (size (unsigned-byte 32) (pb:item-sizes item)) size))

(define-reader read-mixed (mixed)
  (pb:mixed-id mixed)
  (low (pb:mixed-serial mixed))
  (pb:mixed-flags mixed)
  (low (pb:mixed-mask mixed))
  (pb:mixed-delta mixed)
  (low (pb:mixed-offset mixed))
  (pb:mixed-check mixed)
  (low (pb:mixed-hash mixed))
  (pb:mixed-shift mixed)
  (low (pb:mixed-moment mixed))
  (truncate (the (single-float -1f6 1f6) (pb:mixed-ratio mixed)))
  (truncate (the (double-float -1d6 1d6) (pb:mixed-score mixed)))
  (if (pb:mixed-active mixed) 1 0)
  (text (pb:mixed-title mixed))
  (length (the clgrpc.base:octets (pb:mixed-token mixed)))
  (if (eq :odd (pb:mixed-kind mixed)) 7 0)
  (read-place (pb:mixed-place mixed))
  (text (pb:mixed-note mixed))
  (case (pb:mixed-choice-case mixed)
    (:number (pb:mixed-number mixed))
    (:word (text (pb:mixed-word mixed)))
    (t 0))
  (sum-of (count (signed-byte 32) (pb:mixed-counts mixed)) count)
  (sum-of (tag t (pb:mixed-tags mixed)) (text tag))
  (sum-of (item t (pb:mixed-items mixed)) (read-item item)))

(define-reader read-list (list)
  (sum-of (item t (pb:list-items list)) (read-item item)))

(define-reader read-blob (blob)
  (let ((data (pb:blob-data blob)))
    (declare (type clgrpc.base:octets data))
    (+ (length data) (aref data 1))))

(define-reader read-maps (maps)
  (let ((sum 0))
    (declare (type fixnum sum))
    (protobuf:do-map ((key count) (pb:maps-counts maps) sum)
      (setf sum (low (+ sum (text key) (the fixnum count))))))
  (let ((sum 0))
    (declare (type fixnum sum))
    (protobuf:do-map ((key name) (pb:maps-names maps) sum)
      (setf sum (low (+ sum (the fixnum key) (text name))))))
  (let ((sum 0))
    (declare (type fixnum sum))
    (protobuf:do-map ((key place) (pb:maps-places maps) sum)
      (setf sum (low (+ sum (text key) (the fixnum (read-place place))))))))

(define-reader read-ints (ints)
  (sum-of (value (signed-byte 32) (pb:ints-small ints)) value)
  (sum-of (value (signed-byte 64) (pb:ints-large ints)) (low value))
  (sum-of (value (signed-byte 32) (pb:ints-deltas ints)) value))

(define-reader read-doubles (doubles)
  (let ((sum 0d0) (values (pb:doubles-values doubles)))
    (declare (type double-float sum) (type (simple-array double-float (*)) values))
    (loop for value of-type double-float across values do (incf sum value))
    (truncate (the (double-float 0d0 1d15) sum))))

(define-reader read-texts (texts)
  (sum-of (text t (pb:texts-texts texts)) (text text)))

(defun reader-of (message)
  (etypecase message
    (pb:feature #'read-feature) (pb:mixed #'read-mixed) (pb:list #'read-list) (pb:blob #'read-blob)
    (pb:maps #'read-maps) (pb:ints #'read-ints) (pb:doubles #'read-doubles)
    (pb:texts #'read-texts)))

;;; Measuring

(defun cpu-ns ()
  (* 1000 (get-internal-run-time)))     ; in microseconds

(defun measure (operation milliseconds)
  "The nanoseconds and the octets consed per call of OPERATION."
  (declare (type function operation))
  (let ((batch 1) (calls 0) (start (cpu-ns)) (consed (sb-ext:get-bytes-consed)))
    (declare (type fixnum batch calls))
    (loop
      (dotimes (i batch) (funcall operation))
      (incf calls batch)
      (let ((spent (- (cpu-ns) start)))
        (when (>= spent (* 1000000 milliseconds))
          (return (values (/ spent calls) (/ (- (sb-ext:get-bytes-consed) consed) calls))))
        (when (< spent (* 200000 milliseconds)) (setf batch (* 2 batch)))))))

(defun decoder (message octets)
  (declare (type clgrpc.base:octets octets))
  (let ((type (protobuf:message-type-of message)) (reader (reader-of message)))
    (declare (type function reader))
    (lambda () (funcall reader (protobuf:parse-octets type octets 0 (length octets))))))

(defun answer (row operation milliseconds)
  (let* ((message (cdr (assoc row *rows* :test #'string=)))
         (octets (protobuf:serialize message))
         (decoder (decoder message octets)))
    (multiple-value-bind (ns consed)
        (measure (if (string= operation "decode") decoder (lambda () (protobuf:serialize message)))
                 milliseconds)
      (format t "{\"ns\":~,1F,\"octets\":~,1F,\"size\":~D,\"sum\":~D}~%" ns consed (length octets)
              (funcall decoder))
      (finish-output))))

(defun main ()
  (sb-ext:disable-debugger)
  (let ((directory (uiop:ensure-directory-pathname (second sb-ext:*posix-argv*))))
    (loop for (row . message) in *rows*
          do (with-open-file (out (merge-pathnames row directory) :direction :output
                                  :element-type '(unsigned-byte 8))
               (write-sequence (protobuf:serialize message) out))))
  (setf (sb-ext:bytes-consed-between-gcs) (* 12 1024 1024))
  (sb-ext:gc)
  (format t "ready~%")
  (finish-output)
  (loop for line = (read-line *standard-input* nil)
        while line
        do (destructuring-bind (row operation milliseconds) (uiop:split-string line)
             (answer row operation (parse-integer milliseconds)))))

(sb-ext:save-lisp-and-die (uiop:getenv "CLGRPC_PROGRAM")
                          :executable t :save-runtime-options t :toplevel #'main)
