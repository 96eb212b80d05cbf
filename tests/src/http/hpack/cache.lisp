;;;; The caches by raw octets: what is found again, and what must not be kept.

(in-package #:clgrpc.tests.hpack)

(defun literal-field (decoder octets)
  "The field of the literal OCTETS, decoded without looking for the block as a whole."
  (let ((list (make-field-list)))
    (hpack::decode-fields decoder octets 0 (length octets) list)
    (svref (field-list-fields list) 0)))

(defun raw-literal (name value)
  (encode (make-encoder) (list (list name value)) :mode :plain))

(test repeated-literals-are-one-field
  (let ((decoder (make-decoder))
        (raw (raw-literal ":path" "/routeguide.RouteGuide/GetFeature")))
    (literal-field decoder raw)
    (let ((second (literal-field decoder raw)))
      (is (equal "/routeguide.RouteGuide/GetFeature" (field-value-string second)))
      (is (eq second (literal-field decoder raw)))
      (is (eq second (literal-field decoder (copy-seq raw)))))))

(test a-passing-literal-does-not-drive-out-a-repeated-one
  (let ((decoder (make-decoder))
        (raw (raw-literal ":path" "/helloworld.Greeter/SayHello")))
    (dotimes (i 2) (literal-field decoder raw))
    (let ((field (literal-field decoder raw)))
      (dotimes (i 1000)
        (literal-field decoder (raw-literal "grpc-timeout" (format nil "~Du" i))))
      (is (eq field (literal-field decoder raw))))))

(test literals-that-are-never-kept
  "Never-indexed ones, those named by the dynamic table, and long ones come fresh each time."
  (flet ((fresh-p (octets &key before)
           (let ((decoder (make-decoder)))
             (when before (decode decoder before))
             (dotimes (i 3) (literal-field decoder octets))
             (not (eq (literal-field decoder octets) (literal-field decoder octets))))))
    (is (fresh-p (hex "1001610162")))
    (is (fresh-p (hex "0f2f0162") :before (hex "4001610162")))
    (is (fresh-p (raw-literal "x" (make-string 400 :initial-element #\a))))))

(test a-name-from-the-dynamic-table-is-looked-up-each-time
  (let ((decoder (make-decoder)))
    (decode decoder (hex "4001610162"))                         ; 62 is a
    (dotimes (i 3)
      (is (equal '(("a" "z")) (decoded "0f2f017a" :decoder decoder))))
    (decode decoder (hex "4001630164"))                         ; now 62 is c
    (is (equal '(("c" "z")) (decoded "0f2f017a" :decoder decoder)))))

(test what-peers-have-in-common-is-one-field
  "Decoders that share keep one object of what clients all send, but not of what may be secret, and
only if a name of the dynamic table has no part in it."
  (let ((common (make-common-fields)))
    (flet ((entry (name value &optional (before '()))
             (let ((decoder (make-decoder :common common)) (list (make-field-list)))
               (dolist (octets before) (decode decoder octets))
               (decode decoder (encode (make-encoder) (list (list name value)) :mode :index)
                       :list list)
               (is (equal value (field-value-string (svref (field-list-fields list) 0))))
               (is (= (1+ (length before)) (hpack::table-count decoder)))
               (svref (field-list-fields list) 0))))
      (loop for (name value) in '((":path" "/helloworld.Greeter/SayHello") ("te" "trailers")
                                  ("content-type" "application/grpc") ("user-agent" "x/1"))
            do (dotimes (i 2) (entry name value))
               (is (eq (entry name value) (entry name value)) "~A" name))
      (loop for (name value) in '(("authorization" "Bearer x") ("cookie" "a=b") ("x-id" "1"))
            do (dotimes (i 2) (entry name value))
               (is (not (eq (entry name value) (entry name value))) "~A" name))
      (is (not (eq (entry "te" "trailers") (entry "te" "other"))))
      ;; 62 is te here and x there
      (flet ((named-by-table (before)
               (let ((decoder (make-decoder :common common)))
                 (decode decoder before)
                 (decoded "7e0161" :decoder decoder))))
        (dotimes (i 3)
          (is (equal '(("te" "a")) (named-by-table (hex "400274650162"))))
          (is (equal '(("x" "a")) (named-by-table (hex "4001780162")))))))))

(test a-cache-grows-with-what-repeats
  (let ((decoder (make-decoder)))
    (flet ((fields (count)
             (loop for i below count
                   collect (literal-field decoder
                                          (raw-literal ":path" (format nil "/a.B/C~D" i))))))
      (dotimes (i 2) (fields 1))
      (let ((first (fields 1)))
        (is (= 4 (length (hpack::decoder-literals decoder))))
        (dotimes (i 3) (fields 8))
        (is (= (* 4 hpack::+cache-sets+) (length (hpack::decoder-literals decoder))))
        (is (equal first (fields 1)) "known fields are still found"))
      (is (<= 1 (loop for one in (fields 8) for other in (fields 8) count (eq one other)))))))

(test blocks-that-are-never-kept
  "Those with a never-indexed field, a size update, or an overflow, and changes of the table."
  (flet ((kept-p (text &rest arguments)
           (let ((decoder (apply #'make-decoder arguments)) (list (make-field-list)))
             (dotimes (i 4) (decode decoder (hex text) :list list))
             (setf (field-list-memo list) t)
             (decode decoder (hex text) :list list)
             (field-list-memo list))))
    (is (kept-p "8286"))
    (is (not (kept-p "821001610162")))
    (is (not (kept-p "3fe11f82")))
    (is (not (kept-p "828282" :list-octets 100)))
    (is (not (kept-p "824001610162")))))

(test blocks-are-dropped-when-the-table-changes
  "A new entry, a size update and a lower limit of ours each drop all of them, with the fields that
only they would still have."
  (flet ((dropped-p (function)
           (let ((decoder (make-decoder)))
             (decode decoder (hex "4001610162"))
             (dotimes (i 3) (decode decoder (hex "be")) (decode decoder (hex "bebe")))
             (let ((memory (hpack::decoder-memory decoder)))
               (is (some #'hpack::repeat-p (hpack::decoder-blocks decoder)))
               (funcall function decoder)
               (and (notany #'identity (hpack::decoder-blocks decoder))
                    (zerop (hpack::decoder-block-octets decoder))
                    (< (hpack::decoder-memory decoder) memory))))))
    (is-true (dropped-p (lambda (decoder) (decode decoder (hex "4001630164")))))
    (is-true (dropped-p (lambda (decoder) (decode decoder (hex "2082")))))
    (is-true (dropped-p (lambda (decoder) (set-decoder-limit decoder 40))))))

(test the-memory-of-blocks-is-that-of-those-there
  "However often blocks take the places of others."
  (let ((decoder (make-decoder)))
    (dotimes (i 200)
      (let ((values (loop repeat (mod i 7) collect (+ 65 (mod i 50)))))
        (loop repeat 3
              do (decode decoder (hex (format nil "82000161~2,'0X~{~2,'0X~}" (length values)
                                              values))))))
    (is (= (hpack::decoder-block-octets decoder)
           (loop for part across (hpack::decoder-blocks decoder)
                 when (hpack::repeat-p part) sum (hpack::repeat-memory part))))
    (is (plusp (hpack::decoder-block-octets decoder)))))

(test a-literal-that-did-not-fit-may-fit-later
  (let ((decoder (make-decoder)))
    (decoded "3f0182" :decoder decoder)                         ; limit 32: nothing fits
    (dotimes (i 4) (decoded "4001610162" :decoder decoder))
    (decoded "3fe11f82" :decoder decoder)
    (decoded "4001610162" :decoder decoder)
    (is (equal '(("a" "b")) (entries decoder)))))

(test what-is-found-is-what-is-decoded
  "Over random repetitions and changes of the table caches make no difference."
  (with-random (what-is-found-is-what-is-decoded)
    (let* ((texts '("8286" "828684" "0001610162" "8204012f" "be" "bebf" "82be" "1001610162"
                    "0f2f017a" "4001610162" "4001630164" "203fe11f" "3fe11f82" "8241026162"
                    "3f0182" "3fe11f82be"))
           (known 0))
      (dotimes (round 1000)
        (let ((decoder (make-decoder)) (plain (make-decoder)) (list (make-field-list))
              (expected (make-field-list)))
          (decode decoder (hex "4001630164 4001650166") :list list)
          (decode plain (hex "4001630164 4001650166") :list expected)
          (dotimes (i 60)
            (let ((octets (hex (nth (random (if (evenp round) 9 (length texts))) texts))))
              (flet ((outcome (list function)
                       (handler-case (progn (funcall function) (cons (field-list-octets list)
                                                                     (pairs list)))
                         (hpack-error () :error))))
                (let ((seen (outcome list (lambda () (decode decoder octets :list list)))))
                  (unless (equal seen (outcome expected
                                               (lambda ()
                                                 (setf (hpack::decoder-literals plain) nil)
                                                 (hpack::decode-fields
                                                  plain octets 0 (length octets) expected))))
                    (fail "~S in round ~D gave ~S" octets round seen))
                  (when (hpack::field-list-repeat list) (incf known))
                  (when (eq seen :error) (return))))))))
      (is (plusp known)))))

(test a-size-update-counts-each-time
  (let ((decoder (make-decoder)))
    (dotimes (i 5)
      (decoded "4001610162" :decoder decoder)
      (is (= 34 (hpack::table-octets decoder)))
      (decoded "2082" :decoder decoder)
      (is (= 0 (hpack::table-octets decoder)))
      (decoded "3fe11f82" :decoder decoder))))
