;;;; Octets: copies, few by words, many by lanes, within one vector in either direction; buffers.

(in-package #:clgrpc.tests.base)

(defun numbered-octets (length)
  (let ((octets (make-octets length)))
    (dotimes (i length octets)
      (setf (aref octets i) (mod (1+ (* 7 i)) 256)))))

(defun check-copies (counts places target)
  "Check that all copies of COUNTS octets between PLACES, (start at), are like REPLACE's, and that
no other octets change. TARGET returns the destination for copies of its argument."
  (let ((wrong '()))
    (dotimes (count counts)
      (loop for (start at) in places
            for from = (numbered-octets 240)
            for to = (funcall target from)
            for expected = (replace (copy-seq to) (copy-seq from)
                                    :start1 at :end1 (+ at count) :start2 start)
            unless (and (= (+ at count) (copy-octets from start (+ start count) to at))
                        (equalp expected to))
              do (push (list count start at) wrong)))
    (is (null wrong))))

(test copies-of-all-lengths
  (check-copies 201 '((0 0) (1 0) (0 1) (3 5) (13 8) (16 17) (39 39))
                (lambda (from) (make-octets (length from)))))

(test copies-within-a-vector
  "The ranges may overlap."
  (check-copies 150 '((0 0) (0 1) (1 0) (5 12) (12 5) (0 64) (64 0)) #'identity))

(test equality-of-all-lengths
  "Each octet in the range counts, wherever it is, and none outside."
  (let ((a (numbered-octets 40)) (wrong '()))
    (dotimes (count 35)
      (loop for start below 9
            for b = (make-octets 60)
            for part = (subseq a 0 count)
            do (replace b part :start1 start)
               (unless (octets-equal part b :start start :end (+ start count))
                 (push (list count start) wrong))
               (when (octets-equal part b :start start :end (+ start count 1))
                 (push (list count start :longer) wrong))
               (dotimes (i 60)
                 (setf (aref b i) (logxor 128 (aref b i)))
                 (unless (eq (not (<= start i (+ start count -1)))
                             (octets-equal part b :start start :end (+ start count)))
                   (push (list count start i) wrong))
                 (setf (aref b i) (logxor 128 (aref b i))))))
    (is (null wrong)))
  (is-false (octets-equal (octets-of 1) (octets-of 1) :start 1 :end 2)))

(test copies-beyond-the-end
  (let ((octets (make-octets 10)) (others (make-octets 10)))
    (loop for (start end at) in '((0 11 0) (0 10 1) (5 4 0) (11 11 0) (0 1 10))
          do (signals type-error (copy-octets octets start end others at)))
    (is (= 10 (copy-octets octets 10 10 others 10)))))

(test buffers-grow
  "They grow to a power of two while they are short, then to the needed size or twice their own."
  (flet ((size-after (&rest counts)
           (let ((buffer (make-buffer :size 16)))
             (dolist (count counts (length (buffer-octets buffer)))
               (append-octets buffer (make-octets count))))))
    (is (= 16 (size-after 16)))
    (is (= 32 (size-after 16 1)))
    (is (= 1024 (size-after 16 1000)))
    (is (= 1048576 (size-after 600000)))
    (is (= 1500000 (size-after 1500000)))
    (is (= 3000000 (size-after 1500000 1)))))
