;;;; The encoder: modes, size updates, and a table that always equals a decoder's.

(in-package #:clgrpc.tests.hpack)

(test modes
  (let ((encoder (make-encoder)) (field (string-field "x" "y")))
    (is (equalp (hex "0001780179") (encode encoder (list field) :mode :plain)))
    (is (equalp (hex "0001780179") (encode encoder (list field) :mode :plain)))
    (is (equalp (hex "1001780179") (encode encoder (list field) :mode :never)))
    (is (equalp (hex "4001780179") (encode encoder (list field) :mode :index)))
    (is (equalp (hex "be") (encode encoder (list field) :mode :index)))
    (is (equalp (hex "be") (encode encoder (list field) :mode :plain)))
    (is (equalp (hex "be") (encode encoder '(("x" "y")))) "an equal field is as good")
    (is (equalp (hex "1f2f0179") (encode encoder (list field) :mode :never)))
    (is (equalp (hex "7e017a") (encode encoder '(("x" "z")))) "the table has the name")))

(test sensitive-fields-are-never-indexed
  (let ((encoder (make-encoder)) (field (string-field "x" "y" :sensitive 1))) ; any true value
    (dolist (mode '(:index :plain :never))
      (is (equalp (hex "1001780179") (encode encoder (list field) :mode mode))))
    (is (= 0 (hpack::table-count encoder)))))

(test static-indices
  (is (equalp (hex "8386848588") (encode (make-encoder)
                                         '((":method" "POST") (":scheme" "http") (":path" "/")
                                           (":path" "/index.html") (":status" "200"))))))

(test huffman-only-where-shorter
  (is (equalp (hex "0001780161") (encode (make-encoder) '(("x" "a")) :mode :plain)) "1 and 1")
  (is (equalp (hex "0001788218c7") (encode (make-encoder) '(("x" "aaa")) :mode :plain)) "2 and 3"))

(test literals-without-a-field-object
  (let ((encoder (make-encoder)) (decoder (make-decoder)) (buffer (make-buffer)))
    (dolist (mode '(:plain :never :index :index))
      (encode-literal encoder buffer (ascii-octets "x") (ascii-octets "y") mode))
    (is (equalp (hex "0001780179 1001780179 4001780179 be")
                (subseq (buffer-octets buffer) 0 (buffer-end buffer))))
    (decode-block decoder (buffer-octets buffer) 0 (buffer-end buffer) (make-field-list))
    (is (= 1 (hpack::table-count decoder)))))

(test fields-that-would-fill-the-table-stay-out
  (let ((encoder (make-encoder)))
    (encode encoder '(("x" "y")))
    (encode encoder (list (list "big" (make-string 4000 :initial-element #\a))))
    (is (= 1 (hpack::table-count encoder)))))

(test size-updates-encoded
  (let ((encoder (make-encoder)))
    (is (equalp (hex "82") (encode encoder '((":method" "GET")))) "nothing to announce yet")
    (encode encoder '(("x" "y")))
    (set-encoder-limit encoder 8192)
    (is (equalp (hex "be") (encode encoder '(("x" "y")))) "our own limit is 4096")
    (set-encoder-limit encoder 0)
    (set-encoder-limit encoder 100)
    (is (equalp (hex "20 3f45 4001780179") (encode encoder '(("x" "y"))))
        "the least limit and the last one are sent, and the entry is gone")
    (is (equalp (hex "be") (encode encoder '(("x" "y")))))
    (set-encoder-limit encoder 50)
    (set-encoder-limit encoder 60)
    (set-encoder-limit encoder 100)
    (is (equalp (hex "3f13 3f45 be") (encode encoder '(("x" "y")))) "the least limit is sent")
    (set-encoder-limit encoder 4096)
    (is (equalp (hex "3fe11f be") (encode encoder '(("x" "y")))) "a rise is announced once")))

(test a-smaller-table-is-announced-at-once
  (let ((encoder (make-encoder :table-octets 0)))
    (is (equalp (hex "20 0001780179") (encode encoder '(("x" "y")))))
    (is (equalp (hex "0001780179") (encode encoder '(("x" "y")))))))

(defun random-field ()
  "A field from few names and values, so that repetitions and evictions happen."
  (flet ((text (limit)
           (map 'string (lambda (octet) (code-char octet))
                (random-octets (random limit) :limit (if (zerop (random 4)) 256 128)))))
    (string-field (case (random 4)
                    (0 (text 12))
                    (1 (field-name-string (svref hpack::**static-fields** (1+ (random 61)))))
                    (t (format nil "name-~D" (random 12))))
                  (case (random 4)
                    (0 (text (if (zerop (random 20)) 2000 40)))
                    (t (format nil "value ~D" (random 6))))
                  :sensitive (zerop (random 10)))))

(test random-round-trips
  "Random fields, modes and limits: the decoder sees what was encoded, and both tables stay equal."
  (with-random (random-round-trips)
    (dotimes (round 40)
      (let ((encoder (make-encoder :table-octets 8192)) (decoder (make-decoder :table-octets 8192)))
        (dotimes (i 40)
          (when (zerop (random 5))
            (dotimes (j (1+ (random 2))) (set-encoder-limit encoder (random 9000))))
          (let ((fields (loop repeat (random 12) collect (random-field)))
                (buffer (make-buffer :size 16)))
            (begin-block encoder buffer)
            (dolist (field fields)
              (encode-field encoder buffer field (if (zerop (random 3)) :plain :index)))
            (let ((list (make-field-list)))
              (decode-block decoder (buffer-octets buffer) 0 (buffer-end buffer) list)
              (unless (and (equal (mapcar #'pair fields) (pairs list))
                           (equal (entries encoder) (entries decoder))
                           (= (hpack::table-limit encoder) (hpack::table-limit decoder)))
                (fail "block ~D of connection ~D came out differently: ~S" i round fields)))))))
    (pass)))

(test every-live-entry-is-found
  "After many insertions and evictions each live entry has its index, by value and by name."
  (let ((encoder (make-encoder :table-octets 1000)))
    (dotimes (i 500)
      (encode encoder (list (list (format nil "name-~D" (mod i 7)) (format nil "value-~D" i)))))
    (loop for index from 62 to (+ 61 (hpack::table-count encoder))
          for entry = (hpack::find-entry encoder index)
          for copy = (make-field (field-name entry) (field-value entry))
          do (is (= index (hpack::find-dynamic encoder copy)))
             (is (= (position (field-name-string entry) (entries encoder)
                              :key #'first :test #'equal)
                    (- (hpack::find-dynamic-name encoder copy) 62))))
    (is (= 0 (hpack::find-dynamic encoder (string-field "name-1" "value-1"))))))

(test fields-known-by-heart
  "ENCODE-FIELDS writes ENCODE-FIELD's octets, whatever happens to the table between calls."
  (with-random (fields-known-by-heart)
    (let ((vectors (loop for size in '(0 1 2 3 8 8 8 8 8 8 8 8)
                         collect (coerce (loop repeat size collect (random-field)) 'simple-vector)))
          (used 0))
      (dotimes (round 30)
        (let ((encoder (make-encoder)) (plain (make-encoder)) (buffer (make-buffer :size 16)))
          (dotimes (i 60)
            (when (zerop (random 20))
              (let ((limit (random 4096)))
                (set-encoder-limit encoder limit)
                (set-encoder-limit plain limit)))
            (when (zerop (random 10))
              (let ((field (random-field)))
                (encode encoder (list field))
                (encode plain (list field))))
            (clear-buffer buffer)
            (begin-block encoder buffer)
            (dotimes (j (1+ (random 2)))
              (let ((fields (nth (random (if (evenp round) 4 12)) vectors)))
                (when (hpack::find-encoded encoder fields) (incf used))
                (encode-fields encoder buffer fields)
                (let ((expected (encode plain (coerce fields 'list))))
                  (unless (and (eql (- (buffer-end buffer) (length expected))
                                    (search expected (buffer-octets buffer) :from-end t
                                            :end2 (buffer-end buffer)))
                               (equal (entries encoder) (entries plain)))
                    (fail "~S differ in round ~D" fields round)))))))
        (is (plusp used))))))

(test repeated-encoding-allocates-nothing
  (let* ((encoder (make-encoder)) (buffer (make-buffer))
         (name (ascii-octets "grpc-message")) (value (ascii-octets "not found"))
         (fields (list (string-field ":status" "200")
                       (string-field "content-type" "application/grpc")
                       (string-field "grpc-status" "0")))
         (together (coerce fields 'simple-vector)))
    (is (= 0 (octets-per-run (lambda ()
                               (clear-buffer buffer)
                               (begin-block encoder buffer)
                               (dolist (field fields) (encode-field encoder buffer field :index))
                               (encode-fields encoder buffer together)
                               (encode-literal encoder buffer name value :plain)))))))

(test an-unused-encoder-is-small
  (is (>= 150 (octets-per-run #'make-encoder :runs 5000))))
