;;;; The decoder: everything that RFC 7541 forbids, limits, sharing and allocation, and random
;;;; blocks, for which only HPACK-ERROR may be signalled.

(in-package #:clgrpc.tests.hpack)

(defun bad-p (text &key (decoder (make-decoder)))
  "True if the block of hexadecimal TEXT is refused with a condition that reports on one line."
  (handler-case (progn (decoded text :decoder decoder) nil)
    (hpack-error (condition)
      (let ((report (princ-to-string condition)))
        (and (plusp (length report)) (not (find #\Newline report)))))))

(test forbidden-blocks
  (loop for (text . why) in
        '(("80" . "index 0")
          ("c6" . "index 70 of an empty table")
          ("be" . "index 62 of an empty table")
          ("ffffffffff0f" . "a huge index")
          ("ff" . "an index cut short")
          ("ff80" . "an index cut short in its continuation")
          ("ff808080808000" . "an integer with six continuation octets")
          ("ffffffffffffffffffffffffff" . "an integer without end")
          ("40" . "a literal without name")
          ("4001" . "a name cut short")
          ("400161" . "a literal without value")
          ("4001610562" . "a value cut short")
          ("4001617fffffff07" . "a value of half a gigabyte")
          ("7f" . "a name index cut short")
          ("7e0162" . "a name index out of range")
          ("0f5f0162" . "the same without indexing")
          ("1f5f0162" . "the same never indexed")
          ("00" . "a literal without anything")
          ("0081ff0162" . "padding longer than 7 bits in a name")
          ("008118" . "padding of zeros in a name")
          ("04811e" . "padding of zeros in a value")
          ("0484ffffffff" . "EOS")
          ("8220" . "a size update after the first field")
          ("823fe11f" . "a larger one after the first field")
          ("822001610162" . "one where a literal could be")
          ("823f000162" . "one where a literal could be with the name of an index")
          ("3fe21f" . "a size update over the limit")
          ("3fffffffffff07" . "a size update far over it")
          ("3f" . "a size update cut short"))
        do (is (eq t (bad-p text)) "~A" why)))

(test empty-block
  (is (equal '() (decoded ""))))

(test longest-integers
  "Five continuation octets are read, even if they are zeros."
  (is (equal '((":method" "GET")) (decoded "3f808080800082"))) ; a size update to 31
  (is (eq t (bad-p "ff8080808001"))))

(test block-within-octets
  "Only the octets START to END count."
  (let ((octets (hex "ff8286ff")) (list (make-field-list)))
    (decode-block (make-decoder) octets 1 3 list)
    (is (equal '((":method" "GET") (":scheme" "http")) (pairs list)))
    (signals error (decode-block (make-decoder) octets 1 5 list))
    (signals error (decode-block (make-decoder) octets 3 1 list))))

(test size-updates-decoded
  (let ((decoder (make-decoder)))
    (decoded "4001610162" :decoder decoder)
    (is (equal '(("a" "b")) (decoded "be" :decoder decoder)))
    (is (equal '(("a" "b")) (decoded "3fe11fbe" :decoder decoder)) "a size may equal the limit")
    (is (eq t (bad-p "203fe11fbe" :decoder decoder)) "a size of 0 has removed the entry")
    (is (equal '((":method" "GET")) (decoded "82" :decoder decoder)))))

(test limit-of-the-table-changes
  (let ((decoder (make-decoder)))
    (decoded "4001610162 4001630164" :decoder decoder)
    (set-decoder-limit decoder 40)
    (is (equal '(("c" "d")) (decoded "3f09be" :decoder decoder)))  ; the oldest entry had to go
    (is (eq t (bad-p "3f0a82" :decoder decoder)) "41 is over 40")
    (set-decoder-limit decoder 10000)
    (is (equal '((":method" "GET")) (decoded "3ff14d82" :decoder decoder)))
    (is (= 10000 (hpack::table-limit decoder)))
    (is (eq t (bad-p "3ff24d82" :decoder decoder)) "10001 is over 10000")))

(test list-limit
  "A list over its limit is not stored, but its fields still enter the table."
  (let* ((decoder (make-decoder :list-octets 100))
         (list (decode decoder (hex "82 4001610162 4001630164 4001650166"))))
    (is (equal '((":method" "GET") ("a" "b")) (pairs list)))
    (is (eq t (field-list-overflow-p list)))
    (is (= (+ 42 34 34 34) (field-list-octets list)))
    (decode decoder (hex "bebf") :list list)
    (is (equal '(("e" "f") ("c" "d")) (pairs list)))
    (is (not (field-list-overflow-p list)))))

(test fields-are-shared
  "An index always gives the table's own object."
  (let ((decoder (make-decoder)) (list (make-field-list)))
    (decode decoder (hex "82 4001610162") :list list)
    (let ((method (find-field list ":method")) (a (find-field list "a")))
      (setf (field-memo a) :seen)
      (decode decoder (hex "82 be") :list list)
      (is (eq method (find-field list ":method")))
      (is (eq a (find-field list "a")))
      (is (eq :seen (field-memo (find-field list "a")))))))

(test never-indexed-is-kept-in-mind
  (is (equal '(("a" "b" :never) ("a" "b")) (decoded "1001610162 0001610162"))))

(defun request-block (encoder)
  "A request as nghttp2 writes it: all indexed except the path."
  (let ((buffer (make-buffer)))
    (begin-block encoder buffer)
    (loop for (name value mode) in '((":method" "POST" :index) (":scheme" "http" :index)
                                     (":path" "/routeguide.RouteGuide/GetFeature1" :plain)
                                     (":authority" "127.0.0.1:50051" :index)
                                     ("user-agent" "h2load nghttp2/1.52.0" :index)
                                     ("content-type" "application/grpc" :index)
                                     ("te" "trailers" :index))
          do (encode-field encoder buffer (string-field name value) mode))
    (subseq-octets (buffer-octets buffer) 0 (buffer-end buffer))))

(test repeated-block-allocates-nothing
  (let* ((encoder (make-encoder)) (decoder (make-decoder)) (list (make-field-list))
         (first (request-block encoder))
         (again (request-block encoder)))
    (decode decoder first :list list)
    (is (= 7 (field-list-count list)))
    (is (< (length again) 40))
    (is (= 0 (octets-per-run (lambda () (decode decoder again :list list)))))
    (is (= 7 (field-list-count list)))))

(test an-unused-decoder-is-small
  (is (>= 150 (octets-per-run #'make-decoder :runs 5000))))

(test decoder-fuzz
  "Random octets and mutated blocks give a list within the limits or HPACK-ERROR, nothing else."
  (with-random (decoder-fuzz)
    (let ((list (make-field-list)) (errors 0))
      (flet ((feed (decoder octets)
               (handler-case (decode decoder octets :list list)
                 (hpack-error () (incf errors)))
               (unless (and (<= (hpack::table-octets decoder) (hpack::table-limit decoder) 4096)
                            (<= (field-list-count list) 512))
                 (fail "a limit does not hold after ~S" octets))))
        (dotimes (round 3000)
          (let ((decoder (make-decoder)) (encoder (make-encoder)))
            (feed decoder (random-octets (random 60)))
            (setf decoder (make-decoder))
            (dotimes (i 4)
              (let ((block (request-block encoder)))
                (dotimes (j (random 4))
                  (setf (aref block (random (length block))) (random 256)))
                (feed decoder (subseq-octets block 0 (if (zerop (random 4))
                                                         (random (length block))
                                                         (length block)))))))))
      (is (plusp errors)))))
