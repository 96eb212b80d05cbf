;;;; Packed varints of every kind and length, compared with the definition octet by octet; and
;;;; malformed fields. Fields are long enough for the kernels of varint-kernel.lisp, and shorter.

(in-package #:clgrpc.tests.protobuf)

(defparameter *varint-kinds*
  '((:int32 32 t nil) (:uint32 32 nil nil) (:int64 64 t nil) (:uint64 64 nil nil) (:sint32 32 t t)
    (:sint64 64 t t))
  "Rows of a kind, its bits, whether it is signed, and whether it is written in zigzag.")

(defun random-number (bits signed limit)
  "A random number of BITS bits, mostly of LIMIT bits at most."
  (let* ((magnitude (random (ash 1 (if (zerop (random 4)) bits limit)))))
    (cond ((not signed) magnitude)
          ((zerop (random 3)) (max (- (ash 1 (1- bits))) (- magnitude)))
          (t (min magnitude (1- (ash 1 (1- bits))))))))

(defun packed (numbers zigzag)
  "The varints of NUMBERS as a list of octets."
  (loop for number across numbers
        append (protobuf::tag-octets
                (ldb (byte 64 0) (if zigzag (logxor (ash number 1) (ash number -63)) number)))))

(defun call-kind (verb kind &rest arguments)
  (apply (protobuf::kind-function verb kind) arguments))

(test kernels-need-all-their-instructions
  "A hypervisor may announce AVX2 and hide the instructions for bits, which the kernels also use."
  (let ((features (ash 1 23)) (extended (logior (ash 1 3) (ash 1 8))) (more (ash 1 5)))
    (is-true (clgrpc.kernel::bits-p features extended more))
    (is-false (clgrpc.kernel::bits-p 0 extended more))
    (is-false (clgrpc.kernel::bits-p features (ash 1 3) more))
    (is-false (clgrpc.kernel::bits-p features (ash 1 8) more))
    (is-false (clgrpc.kernel::bits-p features extended 0))))

(defun call-on-each-processor (function)
  "Call FUNCTION with all kernels of this processor, then without the widest ones, then without
those of PEXT and PDEP, and then with instructions of every x86-64 only."
  (let ((widest clgrpc.kernel::**avx512-p**) (bits clgrpc.kernel::**fast-bits-p**)
        (lanes clgrpc.kernel::**avx2-p**))
    (unwind-protect
         (loop for (wide fast some) in '((t t t) (nil t t) (nil nil t) (nil nil nil))
               do (setf clgrpc.kernel::**avx512-p** (and wide widest)
                        clgrpc.kernel::**fast-bits-p** (and fast bits)
                        clgrpc.kernel::**avx2-p** (and some lanes))
                  (funcall function))
      (setf clgrpc.kernel::**avx512-p** widest
            clgrpc.kernel::**fast-bits-p** bits
            clgrpc.kernel::**avx2-p** lanes))))

(defmacro on-each-processor (&body body)
  "Run BODY as a function for CALL-ON-EACH-PROCESSOR."
  `(call-on-each-processor (lambda () ,@body)))

(defun read-packed (kind type octets start end &optional (before 0))
  "The elements from START to END of OCTETS, read after BEFORE others."
  (multiple-value-bind (vector count)
      (call-kind "READ-PACKED" kind octets start end (make-array before :element-type type) before
                 nil)
    (subseq vector before count)))

(test packed-varints-of-any-length
  (with-seed ()
    (loop for (kind bits signed zigzag) in *varint-kinds*
          for type = (list (if signed 'signed-byte 'unsigned-byte) bits)
          do (dotimes (i 120)
               (let* ((numbers (coerce (loop with limit = (1+ (random bits))
                                             repeat (if (zerop (random 9)) 700 (random 100))
                                             collect (random-number bits signed limit))
                                       `(simple-array ,type (*))))
                      (octets (coerce (packed numbers zigzag) 'octets))
                      (size (length octets))
                      (start (random 5)) (end (+ start size))
                      (room (make-array (+ end (random 90)) :element-type 'octet)))
                 (on-each-processor
                   (fill room 77)
                   (is (= size (call-kind "SIZE-ELEMENTS" kind numbers nil)))
                   (is (= end (call-kind "PUT-PACKED" kind numbers room start size nil)))
                   (is (equalp octets (subseq room start end)))
                   (is (every (lambda (octet) (= 77 octet)) (subseq room 0 start)))
                   (is (not (find 77 room :start (min (length room) (+ end 9)) :test #'/=)))
                   (is (equalp numbers (read-packed kind type room start end)))
                   (is (equalp numbers (read-packed kind type room start end 3)))))))))

(test packed-varints-that-are-longer-than-need-be
  (on-each-processor
    (loop for (kind bits signed zigzag) in *varint-kinds*
          for type = (list (if signed 'signed-byte 'unsigned-byte) bits)
          do (loop for before from 0 to 130 by 13
                   do (flet ((octets (middle)
                               (coerce (append (make-list before :initial-element 1) middle
                                               (make-list 150 :initial-element 2))
                                       'octets)))
                        (loop for length from 2 to 10
                              for octets = (octets `(,@(make-list (1- length) :initial-element 128)
                                                     0))
                              do (is (= 0 (aref (read-packed kind type octets 0 (length octets))
                                                before))))
                        (dolist (wrong (list (octets (make-list 10 :initial-element 255))
                                             (concatenate 'octets (octets '()) '(255))))
                          (signals protobuf-error
                            (read-packed kind type wrong 0 (length wrong)))))))))

(defun random-short-text ()
  "Mostly a short ASCII string, since long and other strings end a run."
  (let ((length (if (zerop (random 60)) (+ 60 (random 100)) (random 40))))
    (coerce (if (zerop (random 100))
                (loop repeat (1+ length) collect (code-char (+ 200 (random 100))))
                (loop repeat length collect (code-char (random 128))))
            (if (zerop (random 100)) '(simple-array character (*)) 'simple-string))))

(defun text-octets (tag text)
  (let ((octets (clgrpc.base:string-octets text)))
    (append (protobuf::tag-octets tag) (protobuf::tag-octets (length octets))
            (coerce octets 'list))))

(test strings-in-runs
  "READ-RUN reads correct strings, which survive the collector, and as many as it can."
  (with-seed ()
    (let ((kept '()))
      (dotimes (i 150)
        (let* ((tag (aref #(10 122 130 1602 16386 160002) (random 6)))
               (size (length (protobuf::tag-octets tag)))
               (texts (loop repeat (if (zerop (random 9)) 600 (random 60))
                            collect (random-short-text)))
               (rest (loop repeat (random 100) collect (random 8)))
               (octets (coerce (append (loop for text in texts append (text-octets tag text)) rest)
                               'octets))
               (end (- (length octets) (length rest))))
          (when texts
            (on-each-processor
              (multiple-value-bind (vector count next)
                  (protobuf::read-run octets size end tag (vector 1 2 3) 3)
                (decf count 3)
                (is (<= 3 (+ 3 count) (length vector)))
                (is (= next (if (zerop count)
                                size
                                (loop for text in texts repeat count
                                      sum (length (text-octets tag text))))))
                (is (loop for text in texts
                          for i from 3 below (+ 3 count)
                          for read = (svref vector i)
                          always (and (typep read 'simple-base-string) (string= text read))))
                (when (zerop (random 4))
                  (push (cons texts (subseq vector 3 (+ 3 count))) kept))
                (when (and protobuf::+carve-p+ (clgrpc.kernel:avx2-p) (< tag 16384)
                           (< 16 (length texts))
                           (every (lambda (text)
                                    (and (< (length text) 64)
                                         (every (lambda (char) (< (char-code char) 128)) text)))
                                  texts))
                  (is (<= (- (length texts) 33) count))))))
          (when (zerop (random 20)) (sb-ext:gc))))
      (sb-ext:gc :full t)
      (is (loop for (texts . read) in kept
                always (loop for text in texts
                             for other across read always (string= text other)))))))

(test strings-are-written-as-they-are
  (with-seed ()
    (dotimes (i 150)
      (let* ((tag (aref #(10 1602 160002) (random 3)))
             (texts (coerce (loop repeat (if (zerop (random 9)) 300 (random 60))
                                  collect (random-short-text))
                            'simple-vector))
             (octets (coerce (loop for text across texts append (text-octets tag text)) 'octets))
             (start (random 5)) (end (+ start (length octets)))
             (room (make-array (+ end (random 200)) :element-type 'octet)))
        (on-each-processor
          (fill room 77)
          (is (= end (protobuf::put-elements-string texts room start tag nil)))
          (is (equalp octets (subseq room start end)))
          (is (not (find 77 room :start (min (length room) (+ end 9)) :test #'/=))))))))

(defun outcomes (function)
  "The values of FUNCTION on each processor, or :ERROR for octets that are not a message."
  (let ((outcomes '()))
    (on-each-processor
      (push (handler-case (funcall function) (protobuf-error () :error)) outcomes))
    outcomes))

(defun all-alike-p (outcomes)
  (every (lambda (outcome) (equalp outcome (first outcomes))) outcomes))

(test whatever-comes-is-read-alike-by-all-kernels
  (with-seed ()
    (loop for (kind bits signed) in *varint-kinds*
          for type = (list (if signed 'signed-byte 'unsigned-byte) bits)
          do (dotimes (i 40)
               (let* ((more (random 101)) ; percent of octets that another follows
                      (octets (coerce (loop repeat (random 3000)
                                            collect (logior (random 128)
                                                            (if (< (random 100) more) 128 0)))
                                      'octets)))
                 (is (all-alike-p (outcomes (lambda ()
                                              (read-packed kind type octets 0
                                                           (length octets)))))))))
    (dotimes (i 200)
      (let* ((texts (loop repeat (random 200) collect (random-short-text)))
             (octets (coerce (loop for text in texts append (text-octets 354 text)) 'octets)))
        (loop repeat (if (plusp (length octets)) (random 4) 0)
              do (setf (aref octets (random (length octets))) (random 256)))
        (is (all-alike-p (outcomes (lambda ()
                                     (serialize (parse-message "clgrpc.test.All" octets)
                                                :partial t)))))))))
