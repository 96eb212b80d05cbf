;;;; Caches by raw octets, so that octets that a peer repeats cost one comparison. A decoder has:
;;;;
;;;; - literals "without indexing" (RFC 7541 section 6.2.2): some clients, nghttp2's among them,
;;;;   never index `:path` and send the same Huffman string with every request;
;;;; - whole blocks: most requests on a connection differ only in their stream.
;;;;
;;;; A hit returns the same object as the last time, with its memo. Only octets that always mean the
;;;; same may be kept here; DECODER ensures that. Never-indexed literals are not kept (section
;;;; 7.1.3).
;;;;
;;;; Several decoders may share a third cache, for literals "with incremental indexing" (6.2.1), so
;;;; that a field that all clients send, such as a `:path` or a `content-type`, is the same object
;;;; in the tables of all connections. Only fields with names in **COMMON-NAMES** are shared:
;;;; otherwise the time to decode a literal might reveal the fields of other peers to a peer.
;;;;
;;;; A cache is direct mapped, with sets of four elements: raw octets, their meaning, the hash of
;;;; these octets, and the hash of the last octets that missed. Octets are stored when they miss
;;;; twice in a row in their set, so octets that occur only once (time-outs, trace ids) cost no
;;;; memory and do not replace octets that are repeated. A decoder's own cache has one set while the
;;;; cache has only one entry.

(in-package #:clgrpc.hpack)

(defconstant +cache-sets+ 8 "The number of sets of a decoder's own cache, a power of two.")
(defconstant +common-sets+ 64 "The number of sets of a cache that decoders share, a power of two.")
(defconstant +cache-octets+ 192 "The maximum length in octets of an entry of a cache.")

(defun make-raw-cache (&optional (sets 1))
  (make-array (* 4 sets) :initial-element nil))

(defun make-common-fields ()
  "Return an object in which decoders keep the fields that their peers have in common; see
MAKE-DECODER. The same thread must use all these decoders."
  (make-raw-cache +common-sets+))

(define-hot (cache-set :inline t) ((cache simple-vector) (hash hash)) index
  (* 4 (logand hash (1- (ash (length cache) -2)))))

(define-hot (find-raw :inline t) ((cache simple-vector) (hash hash) (octets octets) (start index)
                                  (end index))
    t
  "Return the value stored for the octets START to END, whose hash is HASH, or NIL if there is
none."
  (assert (<= start end (length octets)))
  (let* ((set (cache-set cache hash))
         (raw (svref cache set)))
    (when (and raw
               (= (length (the octets raw)) (- end start))
               (%octets-match raw octets start))
      (svref cache (+ 1 set)))))

(define-hot put-raw ((cache simple-vector) (raw octets) (value t) (hash hash)) null
  (let ((set (cache-set cache hash)))
    (setf (svref cache set) raw
          (svref cache (+ 1 set)) value
          (svref cache (+ 2 set)) hash
          (svref cache (+ 3 set)) nil)
    nil))

(define-hot grow-cache ((cache simple-vector)) simple-vector
  "Return a new cache with all sets, which contains the entry of CACHE, a cache of one set."
  (let ((new (make-raw-cache +cache-sets+))
        (missed (svref cache 3)))
    (when (svref cache 0)
      (put-raw new (svref cache 0) (svref cache 1) (the hash (svref cache 2))))
    (when missed (setf (svref new (+ 3 (cache-set new (the hash missed)))) missed))
    new))

(define-hot note-miss ((cache simple-vector) (hash hash)) (values simple-vector boolean)
  "Note that HASH was not found. Return two values: CACHE, or a larger cache to use in its place;
and true if HASH also was the previous miss in its set."
  (let* ((last (+ 3 (cache-set cache hash)))
         (missed (svref cache last)))
    (cond ((eql hash missed) (values cache t))
          ((and (= 4 (length cache)) (or missed (svref cache 0)))
           (note-miss (grow-cache cache) hash))
          (t (setf (svref cache last) hash)
             (values cache nil)))))

(define-hot store-raw ((cache simple-vector) (hash hash) (octets octets) (start index) (end index)
                       (value t))
    null
  "Store VALUE for the octets START to END, whose hash is HASH."
  (put-raw cache (subseq-octets octets start end) value hash))

(define-load-time-global **common-names**
  (mapcar #'ascii-octets
          '(":path" ":authority" ":scheme" "content-type" "te" "user-agent" "grpc-encoding"
            "grpc-accept-encoding" "grpc-status" "server")))

(defun common-name-p (name)
  "True if fields with NAME contain no secret and are the same for many peers."
  (member name **common-names** :test #'equalp))
