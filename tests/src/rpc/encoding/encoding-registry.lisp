;;;; Compressions that users register: their names, and the limit for their functions.

(in-package #:clgrpc.tests.rpc)
(in-suite :clgrpc.encoding)

(defun call-with-encodings (function)
  "Call FUNCTION, which may register compressions; restore the former ones afterwards."
  (with-changed (encoding::**encodings**) (funcall function)))

(defmacro with-encodings (&body body)
  `(call-with-encodings (lambda () ,@body)))

(defun pairs (octets level)
  "OCTETS as pairs of a count and an octet, a compression for tests."
  (declare (ignore level))
  (let ((result (make-array 0 :element-type 'octet :adjustable t :fill-pointer t)))
    (loop with at = 0
          while (< at (length octets))
          do (let* ((octet (aref octets at))
                    (end (or (position octet octets :start at :test #'/=
                                                    :end (min (length octets) (+ at 255)))
                             (min (length octets) (+ at 255)))))
               (vector-push-extend (- end at) result)
               (vector-push-extend octet result)
               (setf at end)))
    result))

(defun unpair (octets write)
  "Undo PAIRS, a pair at a time."
  (loop for at from 0 below (length octets) by 2
        do (funcall write (make-array (aref octets at) :element-type 'octet
                                      :initial-element (aref octets (1+ at))))))

(defun register-pairs (&key (name :pairs) (compress #'pairs) (decompress #'unpair))
  (encoding:register-compressor name :compress compress :decompress decompress))

(defun expanded (name octets limit)
  "The octets decompressed by NAME from OCTETS, or the failure."
  (multiple-value-bind (outcome result length)
      (encoding:expand-octets (encoding::encoding-of-name name) octets 0 (length octets) limit)
    (if (eq :ok outcome)
        (prog1 (subseq-octets result 0 length) (give-octets-back result))
        (progn (assert (null result)) outcome))))

(test compressors-have-names
  (with-encodings
    (is (eq :pairs (register-pairs)))
    (is (equal '("gzip" "deflate" "pairs") (mapcar #'encoding:encoding-text (encoding:encodings))))
    (is (eq :pairs (encoding:check-compression :pairs)))
    (let ((encoding (encoding::encoding-of-name :pairs)))
      (register-pairs :compress (lambda (octets level) (declare (ignore level)) octets))
      (is (eq encoding (encoding::encoding-of-name :pairs)))
      (is (equalp (octets-of 0 7 7 7)
                  (subseq (encoding:compressed-octets encoding 1 (octets-of 7 7 7) 0 3 1) 0 4))))
    (dolist (name '(:gzip :identity :deflate "pairs" pairs nil :|a,b| :|| :|a b| :ümlaut
                    :abcdefghijklmnopqrstuvwxyz))
      (signals misuse (register-pairs :name name)))
    (dolist (name '(:a :|abcdefghijklmnopqrst.-_9|)) ; of one and of 24 characters
      (is (eq name (register-pairs :name name))))
    (signals misuse (register-pairs :name :|abcdefghijklmnopqrst.-_90|))
    (signals misuse (encoding:register-compressor :half :compress #'pairs))
    (signals misuse (encoding:check-compression :half)))
  (signals misuse (encoding:check-compression :pairs)))

(test compressors-are-few
  (with-encodings
    (signals misuse
      (loop for i from 1 to 20
            do (register-pairs :name (intern (format nil "PAIRS-~D" i) '#:keyword))))
    (is (= encoding::+most-encodings+ (length (encoding:encodings))))))

(test compressors-are-bounded
  "The output of a user's function is cut at exactly the limit, whatever pieces it has; then the
function is ended."
  (with-encodings
    (register-pairs)
    (let ((octets (make-octets 100000)))
      (fill octets 7 :end 50)
      (let ((dense (coerce (pairs octets 1) 'octets)))
        (is (equalp octets (expanded :pairs dense 100000)))
        (is (eq :too-long (expanded :pairs dense 99999)))
        (is (eq :too-long (expanded :pairs dense 0)))
        (is (equalp (octets-of) (expanded :pairs (octets-of) 0)))
        (multiple-value-bind (outcome result length)
            (encoding:expand-beginning :pairs dense 0 (length dense) 60)
          (is (eq :too-long outcome))
          (is (equalp (subseq octets 0 60) (subseq result 0 length))))))
    ;; without an end, and in one piece
    (let ((pieces 0) (left nil))
      (register-pairs :decompress (lambda (octets write)
                                    (unwind-protect (loop (incf pieces)
                                                          (funcall write octets 1 3))
                                      (setf left t))))
      (is (eq :too-long (expanded :pairs (octets-of 1 2 3 4) 1001)))
      (is (= 501 pieces))
      (is-true left))
    (let ((huge (make-octets 10000000)))
      (register-pairs :decompress (fn (_octets write) (funcall write huge)))
      (let ((before (sb-ext:get-bytes-consed)))
        (is (eq :too-long (expanded :pairs (octets-of 1) 1000)))
        (is (< (- (sb-ext:get-bytes-consed) before) 1000000))))))

(defun recurse-without-end (octets write)
  (let ((result (recurse-without-end octets write)))
    (incf (first result))
    result))

(test compressors-that-fail
  (with-encodings
    (loop for (function expected)
            in (list (list (lambda (octets write) (aref octets 100) write) :corrupt)
                     (list (lambda (octets write) (funcall write "text") octets) :corrupt)
                     (list (lambda (octets write) (funcall write octets 0 100)) :corrupt)
                     (list (lambda (octets write) (funcall write octets 2 1)) :corrupt)
                     (list (lambda (octets write) (funcall write octets -1 1)) :corrupt)
                     (list (fn (_octets _write) (error "no such thing"))
                           :corrupt)
                     (list #'recurse-without-end :no-memory))
          do (register-pairs :decompress function)
             (is (eq expected (expanded :pairs (octets-of 1 2) 1000))))))

(test zstd-is-registered
  (with-encodings
    (is (eq :zstd (encoding:register-zstd)))
    (is (eq :zstd (encoding:register-zstd)))
    (is (= 3 (length (encoding:encodings))))
    (let ((encoding (encoding::encoding-of-name :zstd)) (octets (make-octets 100000)))
      (multiple-value-bind (dense end) (encoding:compressed-octets encoding 1 octets 0 100000 5)
        (is (< end 1000))
        (is (equalp octets (expanded :zstd (subseq-octets dense 5 end) 100000)))
        (is (eq :too-long (expanded :zstd (subseq-octets dense 5 end) 99999)))))))
