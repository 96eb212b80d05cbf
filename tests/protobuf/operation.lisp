;;;; Whole messages: round trips, equality, copies, printing.

(in-package #:clgrpc.tests.protobuf)
(in-suite :clgrpc.protobuf)

(defun random-integer (low high)
  (case (random 3)
    (0 (aref (vector low high 0 (min high 127) (min high 128) (min high 300) (max low -1))
             (random 7)))
    (1 (max low (min high (- (random 40000) 20000))))
    (t (+ low (random (1+ (- high low)))))))

(defun random-text ()
  (let ((alphabet (if (zerop (random 3)) "aé€𝄞z" "abcdefgh")))
    (coerce (loop repeat (aref #(0 1 3 4 7 8 9 15 16 17 130) (random 11))
                  collect (char alphabet (random (length alphabet))))
            'string)))

(defun random-value (slot depth)
  "A value for one element of the field of SLOT."
  (let ((range (rest (assoc (protobuf::slot-kind slot) protobuf::*integer-ranges*))))
    (if range
        (random-integer (first range) (second range))
        (ecase (protobuf::slot-kind slot)
          (:bool (zerop (random 2)))
          (:string (random-text))
          (:bytes (coerce (loop repeat (random 20) collect (random 256)) 'octets))
          (:enum (aref #(:red :green :blue :neg :big 77 -9) (random 7)))
          (:float (aref (vector 0f0 -0f0 1.5f0 (random 1f30)
                                sb-ext:single-float-positive-infinity) (random 5)))
          (:double (aref (vector 0d0 -0d0 -1.5d0 (random 1d300)
                                 sb-ext:double-float-negative-infinity) (random 5)))
          (:message (random-message (protobuf::slot-type-name slot) (1+ depth)))))))

(defun random-message (type depth)
  "A random message of TYPE at most six levels deep."
  (let ((message (make-message type)) (density (1+ (random 10))))
    (loop for slot across (protobuf::layout-slots
                           (protobuf::message-type-layout (find-message-type type)))
          when (and (< (random 10) density)
                    (< (random 6) (- 6 depth)))
            do (setf (field-value message (protobuf::slot-number slot))
                     (ecase (protobuf::slot-label slot)
                       (:singular (random-value slot depth))
                       (:repeated (loop repeat (random 6) collect (random-value slot depth)))
                       (:map
                        (let ((key (protobuf::slot-entry-key slot))
                              (value (protobuf::slot-entry-value slot)))
                          (loop repeat (random 12)
                                collect (cons (random-value key depth)
                                              (random-value value depth))))))))
    message))

(test random-messages-survive-a-round-trip
  (with-seed ()
    (dotimes (i 300)
      (let* ((message (random-message "clgrpc.test.All" 0))
             (octets (serialize message))
             (back (parse-message 'clgrpc.test:all octets)))
        (is (message= message back))
        (is (equalp octets (serialize back)))
        (is (message= message (copy-message message)))
        (is (stringp (princ-to-string message)))))))

(test concatenation-is-merging
  "Reading two messages one after the other equals reading the second onto the first, both ways."
  (with-seed ()
    (dotimes (i 200)
      (let* ((a (serialize (random-message "clgrpc.test.All" 0)))
             (b (serialize (random-message "clgrpc.test.All" 0)))
             (both (concatenate 'octets a b))
             (type (find-message-type "clgrpc.test.All"))
             (deferred (funcall (protobuf::message-type-reader type) both 0 (length both)
                                (+ protobuf::+recursion-limit+ protobuf::+deferred+))))
        (is (message= deferred (parse-message type both)))))))

(test equality-looks-at-everything
  (let ((message (all :f3 1 :o3 0 :r3 '(1 2) :m1 '(("a" . 1) ("b" . 2))
                      :f17 (clgrpc.test:make-inner))))
    (is (message= message (all :f3 1 :o3 0 :r3 '(1 2) :m1 '(("b" . 2) ("a" . 1))
                               :f17 (clgrpc.test:make-inner))))
    (dolist (change (list (lambda (m) (setf (clgrpc.test:all-f3 m) 2))
                          #'clgrpc.test:clear-all-o3
                          (lambda (m) (setf (clgrpc.test:all-r3 m) '(1 3)))
                          (lambda (m) (setf (map-value (clgrpc.test:all-m1 m) "a") 5))
                          (lambda (m) (setf (clgrpc.test:all-f17 m) nil))
                          (lambda (m) (setf (clgrpc.test:all-f1 m) -0d0))))
      (let ((other (copy-message message)))
        (funcall change other)
        (is-false (message= message other)))))
  (is-false (message= (all) (clgrpc.test:make-inner)))
  (is (message= (all :f1 (protobuf::double-nan)) (all :f1 (protobuf::double-nan)))))

(test copies-share-nothing-mutable
  (let* ((message (all :f17 (clgrpc.test:make-inner :a 1) :r3 '(1 2) :m1 '(("a" . 1))
                       :p17 (clgrpc.test:make-inner :a 2) :r17 (list (clgrpc.test:make-inner :a 3))
                       :m2 (list (cons 1 (clgrpc.test:make-inner :a 4)))))
         (copy (copy-message message)))
    (setf (clgrpc.test:inner-a (clgrpc.test:all-f17 copy)) 9
          (aref (clgrpc.test:all-r3 copy) 0) 9
          (map-value (clgrpc.test:all-m1 copy) "a") 9
          (clgrpc.test:inner-a (clgrpc.test:all-p17 copy)) 9
          (clgrpc.test:inner-a (aref (clgrpc.test:all-r17 copy) 0)) 9
          (clgrpc.test:inner-a (map-value (clgrpc.test:all-m2 copy) 1)) 9)
    (is (message= message (all :f17 (clgrpc.test:make-inner :a 1) :r3 '(1 2) :m1 '(("a" . 1))
                               :p17 (clgrpc.test:make-inner :a 2)
                               :r17 (list (clgrpc.test:make-inner :a 3))
                               :m2 (list (cons 1 (clgrpc.test:make-inner :a 4))))))))

(test messages-print-in-one-line
  (is (equal "#<CLGRPC.TEST:INNER :a 1 :s \"x\" :next #<CLGRPC.TEST:INNER> :xs (1 2)>"
             (let ((*package* (find-package :cl)))
               (princ-to-string (clgrpc.test:make-inner :a 1 :s "x" :next (clgrpc.test:make-inner)
                                                        :xs '(1 2))))))
  (is (not (find #\Newline (princ-to-string (all :f14 (make-string 500 :initial-element #\a)
                                                 :r3 (make-list 500 :initial-element 1)))))))

(defun mutate (octets)
  "A copy of OCTETS with one to four random changes."
  (let ((copy (coerce octets 'list)))
    (dotimes (i (1+ (random 4)) (coerce copy 'octets))
      (let ((at (random (1+ (length copy)))))
        (case (random 4)
          (0 (setf copy (append (subseq copy 0 at) (list (random 256)) (nthcdr at copy))))
          (1 (when (< at (length copy)) (setf (nth at copy) (random 256))))
          (2 (setf copy (subseq copy 0 at)))
          (t (setf copy (append (subseq copy 0 at)
                                (nthcdr (min (length copy) (+ at (random 5))) copy)))))))))

(test mutated-octets-give-documented-conditions-only
  (with-seed ()
    (dotimes (i 40)
      (let ((octets (serialize (random-message "clgrpc.test.All" 3))))
        (dotimes (j 100)
          (handler-case (let ((message (parse-message 'clgrpc.test:all (mutate octets))))
                          (round-trip message))
            (protobuf-error () nil)))))
    (dotimes (i 5000)
      (let ((octets (coerce (loop repeat (random 30) collect (random 256)) 'octets)))
        (handler-case (round-trip (parse-message 'clgrpc.test:all octets))
          (protobuf-error () nil))))
    (pass)))

(test every-leaf-is-known
  "The functions at safety 0 of this layer; a new one needs a look at its callers and a row here."
  (is (null (set-difference
             (remove (find-package '#:clgrpc.protobuf) (leaves)
                     :key #'symbol-package :test-not #'eq)
             '(protobuf::%octet-at protobuf::%u32-at protobuf::%u64-at protobuf::%set-u32-at
               protobuf::%set-u64-at protobuf::%compact protobuf::%last-octet-bit protobuf::%spread
               protobuf::%put-varint protobuf::%put-short-varint
               protobuf::%count-varints)))))
