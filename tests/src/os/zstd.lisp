;;;; libzstd: compression and decompression, frames written by hand, and broken or hostile input.

(in-package #:clgrpc.tests.os)

(defun zstd-compressed (octets &key (level 1))
  (multiple-value-bind (result end) (os:zstd-octets level octets 0 (length octets) 0)
    (prog1 (subseq-octets result 0 end)
      (give-octets-back result))))

(defun zstd-decompressed (octets &optional (limit 10000000))
  "The octets decompressed from OCTETS, or the failure."
  (multiple-value-bind (outcome result length)
      (os:expand-zstd octets 0 (length octets) limit)
    (cond ((eq outcome :ok) (prog1 (subseq-octets result 0 length)
                              (give-octets-back result)))
          (t (assert (null result))
             outcome))))

(defun zstd-frame (window &rest blocks)
  "A frame (RFC 8878) whose head requests WINDOW, an octet of its descriptor, with BLOCKS: lists of
a type, a size and octets."
  (apply #'concatenate 'octets (octets-of #x28 #xB5 #x2F #xFD 0 window)
         (loop for ((type size . octets) . more) on blocks
               for head = (logior (ash size 3) (ash type 1) (if more 0 1))
               collect (octets-of (ldb (byte 8 0) head) (ldb (byte 8 8) head)
                                  (ldb (byte 8 16) head))
               collect (apply #'octets-of octets))))

(test zstd-round-trips
  (is-true (os:open-zstd))
  (let ((random (sb-ext:seed-random-state 2026)))
    (dolist (length '(0 1 100 32768 200000))
      (dolist (level '(1 6 9))
        (let* ((octets (noise length random)) (dense (zstd-compressed octets :level level)))
          (is (equalp octets (zstd-decompressed dense)))
          (is (equalp octets (zstd-decompressed dense length)))
          (when (plusp length)
            (is (eq :too-long (zstd-decompressed dense (1- length))))))))))

(test zstd-places
  "Only the given octets are read, and room is left in front of the result."
  (is-true (os:open-zstd))
  (multiple-value-bind (result end) (os:zstd-octets 1 (octets-of 9 9 1 2 3 9) 2 5 5)
    (multiple-value-bind (outcome back length) (os:expand-zstd result 5 end 3)
      (is (eq :ok outcome))
      (is (equalp (octets-of 1 2 3) (subseq back 0 length))))))

(test zstd-frames-by-hand
  "A raw block and a repeated octet, two frames in a row, a frame to skip."
  (is-true (os:open-zstd))
  (let ((frame (zstd-frame 0 '(0 3 1 2 3) '(1 4 7)))
        (skipped (octets-of #x50 #x2A #x4D #x18 2 0 0 0 5 5)))
    (is (equalp (octets-of 1 2 3 7 7 7 7) (zstd-decompressed frame)))
    (is (equalp (octets-of 1 2 3 7 7 7 7 1 2 3 7 7 7 7)
                (zstd-decompressed (concatenate 'octets frame skipped frame))))))

(test zstd-stops-bombs
  "A frame of a few octets that becomes megabytes, announced or not, and one that requests a window
of gigabytes."
  (is-true (os:open-zstd))
  ;; 200 blocks of 128 KB, of four octets each
  (let ((bomb (apply #'zstd-frame 80 (loop repeat 200 collect '(1 131072 0)))))
    (is (< (length bomb) 1000))
    (is (eq :too-long (zstd-decompressed bomb 26214399)))
    (is (= 26214400 (length (zstd-decompressed bomb 26214400))))
    (let ((before (sb-ext:get-bytes-consed)))
      (is (eq :too-long (zstd-decompressed bomb 100000)))
      (is (< (- (sb-ext:get-bytes-consed) before) 2000000))))
  (is (eq :too-long (zstd-decompressed (zstd-compressed (make-octets 20000000)) 19999999)))
  (is (eq :too-long (zstd-decompressed (zstd-compressed (octets-of 1)) 0)))
  (is (equalp (octets-of) (zstd-decompressed (zstd-compressed (octets-of)) 0)))
  ;; no memory is allocated for the window of 4 GB
  (is (member (zstd-decompressed (zstd-frame #xB0 '(0 3 1 2 3)) 100) '(:corrupt :no-memory)
              :test #'equalp)))

(test zstd-refuses-what-is-broken
  (is-true (os:open-zstd))
  (let ((good (zstd-compressed (noise 5000 (sb-ext:seed-random-state 1)))))
    (loop for end from 0 below (length good)
          do (unless (member (zstd-decompressed (subseq-octets good 0 end)) '(:truncated :corrupt))
               (fail "cut at ~D" end)))
    (is (member (zstd-decompressed (concatenate 'octets good (octets-of 1 2 3 4 5 6 7 8)))
                '(:truncated :corrupt)))
    (is (eq :corrupt (zstd-decompressed (make-octets 50))))))

(test zstd-survives-anything
  (is-true (os:open-zstd))
  (let* ((seed (random 1000000 (make-random-state t)))
         (random (sb-ext:seed-random-state seed))
         (outcomes '()))
    (format *test-dribble* "~&seed ~D~%" seed)
    (dotimes (i 3000)
      (let ((octets (zstd-compressed (noise (random 2000 random) random))))
        (dotimes (j (1+ (random 3 random)))
          (setf (aref octets (random (length octets) random)) (random 256 random)))
        (let ((result (zstd-decompressed octets 4000)))
          (pushnew (if (symbolp result) result :ok) outcomes)
          (when (and (typep result 'octets) (> (length result) 4000)) (fail "past the limit")))))
    (is (subsetp outcomes '(:ok :corrupt :truncated :too-long :no-memory)))
    (is (member :corrupt outcomes))))
