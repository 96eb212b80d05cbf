;;;; Fields at every distance from the end of the octets, where machine code leaves the last few to
;;;; functions that look at each octet; tags of one octet and of more; short packed fields.

(in-package #:clgrpc.tests.protobuf)

(define-proto "field.proto")

(defun same-in-any-place-p (message)
  "True if MESSAGE is read back with none to twenty octets after it, and has the same octets when it
is written before none to twenty."
  (let* ((octets (serialize message)) (size (length octets)) (type (message-type-of message)))
    (loop for more to 20
          for longer = (make-array (+ size more) :element-type 'octet :initial-element 255)
          always (progn
                   (serialize message :into longer)
                   (and (= size (or (mismatch octets longer) size))
                        (every (lambda (octet) (= 255 octet)) (subseq longer size))
                        (message= message (parse-message type longer :end size)))))))

(defun bit-patterns ()
  "The least and the greatest number of each length in bits."
  (remove-duplicates (loop for bits to 63
                           collect (ash 1 bits)
                           collect (1- (ash 2 bits)))))

(test fields-at-every-distance-from-the-end
  (dolist (make (list #'clgrpc.test.field:make-small #'clgrpc.test.field:make-wide))
    (dolist (value (bit-patterns))
      (let ((signed (- (ash value -1))))
        (is-true (same-in-any-place-p (funcall make :a value)))
        (is-true (same-in-any-place-p (funcall make :d t :c (list signed))))
        (is-true (same-in-any-place-p
                  (funcall make :a value
                                :e (clgrpc.test.field:make-small :a value :d t))))))
    (dolist (length '(0 1 11 12 13 127 128 129 16383 16384))
      (is-true (same-in-any-place-p (funcall make :b (make-string length :initial-element #\a))))
      (is-true (same-in-any-place-p
                (funcall make :g (list (make-string length :initial-element #\a) "" "b")))))))

(test short-packed-fields-of-every-length
  (with-seed ()
    (dolist (make (list #'clgrpc.test.field:make-small #'clgrpc.test.field:make-wide))
      (dotimes (count 20)
        (dotimes (i 10)
          (let ((limit (1+ (random 31))))
            (flet ((numbers (sign)
                     (loop repeat count collect (* (random (ash 1 limit)) (funcall sign)))))
              (is-true (same-in-any-place-p
                        (funcall make :c (numbers (lambda () (1- (* 2 (random 2))))))))
              (is-true (same-in-any-place-p (funcall make :f (numbers (constantly 1))))))))))))

(test short-packed-fields-come-in-parts
  (let ((message (parse-message 'clgrpc.test.field:small
                                (unhex "3201053203068001 3205070809ac02"))))
    (is (equalp #(5 6 128 7 8 9 300) (clgrpc.test.field:small-f message)))))

(defun refused-in-any-place-p (type hex)
  "True if HEX is not a message of TYPE, whatever octets follow."
  (loop for more to 20
        for octets = (concatenate 'octets (unhex hex) (make-list more :initial-element 1))
        always (handler-case (null (parse-message type octets :end (- (length octets) more)))
                 (protobuf-error () t))))

(test wrong-fields-at-every-distance-from-the-end
  "Truncated and overlong fields, and fields that reach into the octets after the message."
  (dolist (hex '("08" "0880" "08ffffffffffffffffffff01" "12" "1202" "120261" "1280" "1a" "1a80"
                 "2a02" "3a7f" "3a8001" "07" "0c" "00" "8080808080808001" "ff" "0f" "32fd7f01"))
    (is-true (refused-in-any-place-p 'clgrpc.test.field:small hex) "~A" hex)
    (is-true (refused-in-any-place-p 'clgrpc.test.field:wide hex) "~A" hex))
  (dolist (hex '("1a0180" "1a03ffffff" "1a0cffffffffffffffffffffff01"))
    (is-true (refused-in-any-place-p 'clgrpc.test.field:small hex) "~A" hex)))

(test tags-longer-than-needed
  (dolist (behind '("" "1200120012001200"))
    (is (eql 5 (clgrpc.test.field:small-a
                (parse-message 'clgrpc.test.field:small
                               (unhex (concatenate 'string "888000 05" behind))))))
    (is (equalp #(7) (clgrpc.test.field:small-f
                      (parse-message 'clgrpc.test.field:small
                                     (unhex (concatenate 'string "b200 01 07" behind))))))
    (is (eql 5 (clgrpc.test.field:wide-a
                (parse-message 'clgrpc.test.field:wide
                               (unhex (concatenate 'string "80818000 05" behind))))))))

(test strings-of-every-length-and-kind
  (dotimes (length 70)
    (dolist (char '(#\a #\é #\☃ #\😀))
      (dolist (place (list 0 (floor length 2) (max 0 (1- length))))
        (let ((string (make-string length :initial-element #\b)))
          (when (plusp length) (setf (char string place) char))
          (let ((message (clgrpc.test.field:make-small :b string)))
            (is-true (same-in-any-place-p message))
            (unless (zerop length)
              (let ((octets (string-octets string)))
                (is (equalp (concatenate 'octets '(18) (protobuf::tag-octets (length octets))
                                         octets)
                            (serialize message)))))))))))

(defun define-spots (fields)
  (define "spots.proto" (format nil "syntax = 'proto3'; package clgrpc.test.spots;
message Spot { ~A } message Pin { string name = 1; Spot spot = 2; repeated Spot spots = 3; }"
                                fields)))

(defun fresh (type &rest fields)
  "A message of TYPE with FIELDS, names and values."
  (let ((message (make-message type)))
    (loop for (name value) on fields by #'cddr do (setf (field-value message name) value))
    message))

(test messages-in-line-may-be-redefined
  (flet ((spot (x) (fresh "clgrpc.test.spots.Spot" "x" x)))
    (define-spots "int32 x = 1;")
    (let* ((old (spot 300))
           (pin (fresh "clgrpc.test.spots.Pin" "name" "p" "spot" old
                                               "spots" (list (spot 1) (spot -1))))
           (hex (hex (serialize pin))))
      (is (string= "0a0170120308ac021a0208011a0b08ffffffffffffffffff01" hex))
      (define-spots "int32 x = 1; sint32 y = 2;")
      (is (string= hex (hex (serialize pin))))
      (setf (field-value old "y") -1)   ; which makes a forwarder of OLD
      (is-true (search "120508ac021001" (hex (serialize pin))))
      (let ((young (fresh "clgrpc.test.spots.Pin" "spot" (fresh "clgrpc.test.spots.Spot" "y" 1))))
        (is (string= "12021002" (hex (serialize young)))))
      (define-spots "int32 x = 1;")
      (is-true (search "120508ac021001" (hex (serialize pin))))
      (is (message= pin (round-trip pin))))))
