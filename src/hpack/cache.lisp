;;;; Caches by raw octets, so that what a peer repeats verbatim costs a comparison. For a decoder:
;;;;
;;;; - literals "without indexing" (RFC 7541 section 6.2.2): some clients, nghttp2's among them,
;;;;   never index `:path` and send the same Huffman string with every request;
;;;; - whole blocks: most requests on a connection differ in nothing but their stream.
;;;;
;;;; What is found is the very object of the time before, with all that was remembered in it. Only
;;;; what always means the same may come here; DECODER sees to that. Never-indexed literals are not
;;;; kept (section 7.1.3).
;;;;
;;;; Direct mapped, of +CACHE-SETS+ sets of three: raw octets, what they mean, and the hash of the
;;;; last octets that missed. They are stored when they miss twice in a row in their set, so what
;;;; comes only once (time-outs, trace ids) costs no memory and does not drive out what does repeat.

(in-package #:clgrpc.hpack)

(defconstant +cache-sets+ 8 "Sets of a cache, a power of two.")
(defconstant +cache-octets+ 192 "Longer runs of octets are not kept.")

(defun make-raw-cache ()
  (make-array (* 3 +cache-sets+) :initial-element nil))

(define-hot (cache-set :inline t) ((hash hash)) index
  (* 3 (logand hash (1- +cache-sets+))))

(define-hot (find-raw :inline t) ((cache simple-vector) (hash hash) (octets octets) (start index)
                                  (end index))
    t
  "What is stored for the octets START to END, whose hash is HASH, or NIL."
  (assert (<= start end (length octets)))
  (let* ((set (cache-set hash))
         (raw (svref cache set)))
    (when (and raw
               (= (length (the octets raw)) (- end start))
               (%octets-match raw octets start))
      (svref cache (1+ set)))))

(define-hot missed-twice-p ((cache simple-vector) (hash hash)) boolean
  "Note that HASH was not found; true if it is the second time in a row in its set."
  (let ((last (+ 2 (cache-set hash))))
    (or (eql hash (svref cache last))
        (progn (setf (svref cache last) hash) nil))))

(define-hot store-raw ((cache simple-vector) (hash hash) (octets octets) (start index) (end index)
                       (value t))
    null
  "Store VALUE for the octets START to END, whose hash is HASH."
  (let ((set (cache-set hash)))
    (setf (svref cache set) (subseq-octets octets start end)
          (svref cache (+ 1 set)) value
          (svref cache (+ 2 set)) nil)
    nil))
