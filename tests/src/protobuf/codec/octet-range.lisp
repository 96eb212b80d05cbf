;;;; Ranges of octets: their extension, and their joined octets.

(in-package #:clgrpc.tests.protobuf)

(test a-range-that-follows-extends-the-latest
  (let ((ranges '()))
    (loop for (start end) in '((0 3) (3 5) (7 9) (9 10) (2 3))
          do (setf ranges (protobuf::note-range ranges start end)))
    (is (equal '((2 . 3) (7 . 10) (0 . 5)) ranges)))
  (let ((kept (coerce '(1 2) 'octets)))
    (is (equalp (list '(2 . 4) kept) (protobuf::note-range (list kept) 2 4))
        "Octet vectors among the ranges are not extended.")))

(test ranges-are-gathered-from-the-oldest-on
  (let ((octets (coerce '(10 11 12 13 14 15) 'octets)))
    (is (equalp #() (protobuf::gather-ranges octets '())))
    (is (equalp #(14 10 11 12) (protobuf::gather-ranges octets '((0 . 3) (4 . 5)))))
    (is (equalp #(11 99 98 15)
                (protobuf::gather-ranges octets (list '(5 . 6) (coerce '(99 98) 'octets)
                                                      '(1 . 2)))))))

(defun new-reading ()
  "The state of reading a message that may have a hundred levels."
  (protobuf::make-reading 100 1000000 nil nil))

(test a-message-in-pieces-is-read-as-one
  ;; a = 7, s = "ab", a = 3, each a piece
  (let* ((octets (unhex "0807 ff 12026162 ff 0803"))
         (type (find-message-type "clgrpc.test.Inner"))
         (whole (protobuf::read-pieces type octets '((0 . 2)) (new-reading)))
         (joined (protobuf::read-pieces type octets '((8 . 10) (3 . 7) (0 . 2)) (new-reading))))
    (is (equal '(7 "") (list (field-value whole "a") (field-value whole "s"))))
    (is (equal '(3 "ab") (list (field-value joined "a") (field-value joined "s"))))
    (signals protobuf-error             ; "s" is cut in two
      (protobuf::read-pieces type octets '((5 . 7) (3 . 5) (0 . 2)) (new-reading)))))
