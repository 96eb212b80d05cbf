;;;; libz: compression and decompression, compared with the program gzip, and broken or hostile
;;;; input.

(in-package #:clgrpc.tests.os)

(defun noise (length random)
  "LENGTH octets, parts of which repeat."
  (let ((octets (make-octets length)))
    (dotimes (i length octets)
      (setf (aref octets i)
            (cond ((zerop (random 3 random)) (random 256 random))
                  ((plusp i) (aref octets (1- i)))
                  (t 0))))))

(defun compressed (format octets &key (level 6))
  (multiple-value-bind (result end) (os:deflate-octets format level octets 0 (length octets) 0)
    (prog1 (subseq-octets result 0 end)
      (give-octets-back result))))

(defun decompressed (format octets &optional (limit 10000000))
  "The octets decompressed from OCTETS, or the failure."
  (multiple-value-bind (outcome result length)
      (os:inflate-octets format octets 0 (length octets) limit)
    (cond ((eq outcome :ok) (prog1 (subseq-octets result 0 length)
                              (give-octets-back result)))
          (t (assert (null result))
             outcome))))

(defmacro define-zlib-test (name &body body)
  "Define a test after which no object of libz may remain."
  `(test ,name
     (is-true (os:open-zlib))
     (os:end-idle-streams)
     (let ((before (os:zlib-stream-count)))
       ,@body
       (os:end-idle-streams)
       (is (= before (os:zlib-stream-count))))))

(define-zlib-test zlib-round-trips
  (let ((random (sb-ext:seed-random-state 2026)))
    (dolist (format '(:gzip :deflate))
      (dolist (length '(0 1 2 5 100 32768 32769 200000))
        (dolist (level '(1 6 9 1))
          (let ((octets (noise length random)))
            (is (equalp octets (decompressed format (compressed format octets :level level))))
            (is (equalp octets (decompressed format (compressed format octets) length)))))))))

(define-zlib-test zlib-levels
  ;; each message is compressed by its own level, whatever that of the last one was
  (let ((octets (ascii-octets (format nil "~{~R ~}" (loop for i below 2000 collect i)))))
    (flet ((size (level) (length (compressed :gzip octets :level level))))
      (let ((sizes (mapcar #'size '(1 6))))
        (is (apply #'> sizes))
        (is (equal sizes (mapcar #'size '(1 6))))))))

(define-zlib-test zlib-places
  ;; only the octets asked for are read, and room is left in front
  (let ((octets (octets-of 9 9 1 2 3 9)))
    (multiple-value-bind (result end) (os:deflate-octets :gzip 1 octets 2 5 5)
      (multiple-value-bind (outcome back length) (os:inflate-octets :gzip result 5 end 3)
        (is (eq :ok outcome))
        (is (equalp (octets-of 1 2 3) (subseq back 0 length)))))))

(define-zlib-test zlib-and-the-gzip-program
  (uiop:with-temporary-file (:pathname path :type "gz" :element-type '(unsigned-byte 8)
                             :stream stream)
    (write-sequence (compressed :gzip (ascii-octets "from Lisp to C")) stream)
    ;; a second member
    (write-sequence (compressed :gzip (ascii-octets " and back")) stream)
    (finish-output stream)
    (is (string= "from Lisp to C and back"
                 (uiop:run-program (list "gzip" "-dc" (uiop:native-namestring path))
                                   :output :string)))
    (is (equalp (ascii-octets "from Lisp to C and back")
                (decompressed :gzip (uiop:with-input-file (in path :element-type '(unsigned-byte 8))
                                      (let ((octets (make-octets (file-length in))))
                                        (read-sequence octets in)
                                        octets)))))))

(define-zlib-test zlib-stops-bombs
  (dolist (format '(:gzip :deflate))
    (let ((bomb (compressed format (make-octets 20000000))))
      (is (< (length bomb) 100000))
      (is (eq :too-long (decompressed format bomb 19999999)))
      (is (= 20000000 (length (decompressed format bomb 20000000))))
      (let ((before (sb-ext:get-bytes-consed)))
        (is (eq :too-long (decompressed format bomb 100000)))
        (is (< (- (sb-ext:get-bytes-consed) before) 2000000))))
    (is (eq :too-long (decompressed format (compressed format (octets-of 1)) 0)))
    (is (equalp (octets-of) (decompressed format (compressed format (octets-of)) 0)))))

(define-zlib-test zlib-refuses-what-is-broken
  (dolist (format '(:gzip :deflate))
    (let ((good (compressed format (noise 5000 (sb-ext:seed-random-state 1)))))
      (loop for end from 0 below (length good)
            do (unless (eq :truncated (decompressed format (subseq-octets good 0 end)))
                 (fail "~A cut at ~D" format end)))
      (is (eq :corrupt (decompressed format (concatenate 'octets good (octets-of 1 2 3 4)))))
      (is (eq :corrupt (decompressed (if (eq format :gzip) :deflate :gzip) good)))))
  ;; a stream with a preset dictionary, which gRPC has no way to agree on
  (is (eq :corrupt (decompressed :deflate (octets-of #x78 #xBB 0 0 0 1 3 0 0 0 0 1)))))

(define-zlib-test zlib-survives-anything
  "Compressed octets that were changed are either read as before or refused, mostly as corrupt."
  (let* ((seed (random 1000000 (make-random-state t)))
         (random (sb-ext:seed-random-state seed))
         (outcomes '()))
    (format *test-dribble* "~&seed ~D~%" seed)
    (dotimes (i 3000)
      (let* ((format (if (evenp i) :gzip :deflate))
             (plain (noise (random 2000 random) random))
             (octets (compressed format plain)))
        (dotimes (j (1+ (random 3 random)))
          (setf (aref octets (random (length octets) random)) (random 256 random)))
        (let ((result (decompressed format octets 4000)))
          (push (if (symbolp result) result :ok) outcomes)
          (unless (or (symbolp result) (equalp plain result)) (fail "~A is read as another" i)))))
    (let ((counts (loop for outcome in '(:ok :corrupt :truncated :too-long)
                        collect (count outcome outcomes))))
      (is (= 3000 (reduce #'+ counts)) "~S" (remove-duplicates outcomes))
      (is (<= 2000 (second counts)) "only ~D of 3000 are corrupt" (second counts)))))

(define-zlib-test zlib-by-many-threads
  (let ((threads (loop for i below 20
                       collect (let ((octets (noise 20000 (sb-ext:seed-random-state i))))
                                 (in-thread
                                   (loop repeat 20
                                         always (equalp octets
                                                        (decompressed
                                                         :gzip (compressed :gzip octets)))))))))
    (dolist (thread threads)
      (is (eq t (sb-thread:join-thread thread :default nil :timeout 60))))
    ;; most of what they used was kept
    (is (<= (os:zlib-stream-count) 16))))

(define-zlib-test zlib-after-a-save
  ;; what the hook of SAVE-LISP-AND-DIE does
  (let ((octets (compressed :gzip (octets-of 1 2 3))))
    (clgrpc.os::forget-libraries)
    (is (zerop (os:zlib-stream-count)))
    (is-true (os:open-zlib))
    (is (equalp (octets-of 1 2 3) (decompressed :gzip octets)))))
