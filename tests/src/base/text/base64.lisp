;;;; Base64: the vectors of RFC 4648 section 10, both paddings, and everything that must be refused.

(in-package #:clgrpc.tests.base)

(defparameter *base64-vectors*
  '(("" "") ("f" "Zg==") ("fo" "Zm8=") ("foo" "Zm9v") ("foob" "Zm9vYg==") ("fooba" "Zm9vYmE=")
    ("foobar" "Zm9vYmFy"))
  "RFC 4648 section 10.")

(test base64-vectors
  (loop for (plain padded) in *base64-vectors*
        for octets = (ascii-octets plain)
        for bare = (string-right-trim "=" padded)
        do (is (string= padded (encode-base64 octets :padding t)))
           (is (string= bare (encode-base64 octets)))
           (is (equalp octets (decode-base64 padded)))
           (is (equalp octets (decode-base64 bare)))
           (is (equalp octets (decode-base64 (ascii-octets padded))))))

(test base64-ranges
  (is (string= "b29i" (encode-base64 (ascii-octets "foobar") :start 1 :end 4)))
  (is (equalp (ascii-octets "oob") (decode-base64 "..b29i.." :start 2 :end 6)))
  (is (equalp (ascii-octets "oob") (decode-base64 (ascii-octets "..b29i..") :start 2 :end 6))))

(test base64-round-trip
  (let ((all (make-octets 256)))
    (dotimes (i 256) (setf (aref all i) i))
    (loop for end from 0 to 256
          for octets = (subseq-octets all 0 end)
          do (is (equalp octets (decode-base64 (encode-base64 octets))))
             (is (equalp octets (decode-base64 (encode-base64 octets :padding t)))))
    (is (= 64 (length (remove-duplicates
                       (encode-base64 (decode-base64 clgrpc.base::**base64-digits**))))))))

(test base64-refusals
  (flet ((refused-at (position text)
           (let ((condition (nth-value 1 (ignore-errors (decode-base64 text)))))
             (is (typep condition 'invalid-base64) "~S was not refused" text)
             (when (typep condition 'invalid-base64)
               (is (eql position (invalid-base64-position condition))
                   "~S: at ~D, not ~D" text (invalid-base64-position condition) position)
               (is (stringp (princ-to-string condition)))))))
    (refused-at 1 "A")
    (refused-at 5 "Zm9vY")
    (refused-at 2 "Zg=")                ; half the padding
    (refused-at 3 "Zm8==")              ; too much of it
    (refused-at 4 "Zm9v====")
    (refused-at 0 "====")
    (refused-at 2 "Zg=a")               ; padding in the middle
    (refused-at 2 "Zg =")
    (refused-at 0 "-_-_")               ; the other alphabet (RFC 4648 section 5)
    (refused-at 3 (format nil "Zm9~C" #\Newline))
    (refused-at 1 (format nil "Z~C9v" (code-char #x3BB)))))

(test base64-of-any-alphabet
  "If requested, digits of both alphabets are accepted, even in one text; all else is refused."
  (dolist (text '("+/8=" "-_8=" "-/8" "+_8"))
    (is (equalp #(251 255) (decode-base64 text :any-alphabet t)) "~S" text)
    (is (equalp #(251 255) (decode-base64 (ascii-octets text) :any-alphabet t)) "~S" text))
  (dolist (text '("-_8" "-_8="))
    (signals invalid-base64 (decode-base64 text)))
  (dolist (text '("-,8" "-_=8" "-"))
    (signals invalid-base64 (decode-base64 text :any-alphabet t))))
