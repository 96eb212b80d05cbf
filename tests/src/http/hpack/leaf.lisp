;;;; The unchecked leaves: every octet counts, at every length and alignment, and none outside.

(in-package #:clgrpc.tests.hpack)

(defun sees-p (raw shift)
  "True if RAW, moved by SHIFT, matches and hashes as before, but not if any octet is changed."
  (let* ((length (length raw))
         (end (+ shift length))
         (moved (concatenate 'octets (random-octets shift) raw (random-octets 9)))
         (hash (hpack::%hash-octets raw 0 length 5)))
    (and (hpack::%octets-match raw moved shift)
         (= hash (hpack::%hash-octets moved shift end 5))
         (loop for i from shift below end
               do (setf (aref moved i) (logxor 1 (aref moved i)))
               never (or (hpack::%octets-match raw moved shift)
                         (= hash (hpack::%hash-octets moved shift end 5)))
               do (setf (aref moved i) (logxor 1 (aref moved i)))))))

(test every-octet-counts
  (with-random (every-octet-counts)
    (loop for length from 0 to 40
          for raw = (random-octets length)
          do (is (loop for shift from 0 to 9 always (sees-p raw shift)) "~D octets" length))))

(test leaves-are-listed
  (is (subsetp '(hpack::%word hpack::%mix hpack::%hash-octets hpack::%octets-match
                 hpack::%static-entry hpack::%dynamic-entry)
               (leaves))))
