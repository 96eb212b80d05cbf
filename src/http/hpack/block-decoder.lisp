;;;; The decoder converts a header block (RFC 7541 sections 3.2, 5 and 6) to a FIELD-LIST.
;;;;
;;;; Everything is bounded: an integer has at most five octets after its prefix, a string ends
;;;; within the block, the table and the list have limits. The decoded fields take at most 8/5 of
;;;; the octets of the block, plus objects that are shared. Size updates come before the first field
;;;; (section 4.2). Any other violation of the RFC is an HPACK-ERROR, which makes the decoder
;;;; unusable. An indexed field, and a literal or block found in a cache, allocate nothing.

(in-package #:clgrpc.hpack)

(defstruct (decoder (:include table)
                    (:constructor %make-decoder (limit ceiling list-octets list-fields common))
                    (:copier nil))
  "A decoder of the header blocks of one direction of one connection. See MAKE-DECODER."
  (ceiling 0 :type index)                  ; the highest limit that a size update may set
  (list-octets 0 :type index)           ; the most that the fields of a block may take
  (list-fields 0 :type index)           ; the most fields that a block may have
  (common nil :type (or null simple-vector)) ; cache shared with other decoders
  (literals nil :type (or null simple-vector)) ; a cache of literals, made when needed
  (literal-octets 0 :type index)        ; about how much memory LITERALS take
  (blocks nil :type (or null simple-vector)) ; the cache of whole blocks, or nil
  (block-octets 0 :type index))         ; about the memory of BLOCKS, without the table's fields
(declaim (freeze-type decoder))

(defun make-decoder (&key (table-octets +initial-table-octets+) (list-octets 16384)
                          (list-fields 1000000) common)
  "Return a decoder whose peer may use a dynamic table of up to TABLE-OCTETS. Its lists have at most
LIST-FIELDS fields, of at most LIST-OCTETS together (sizes as in RFC 7541 section 4.1). A peer may
use 4096 octets until it has seen our SETTINGS; therefore set a lower limit only by
SET-DECODER-LIMIT, after the peer has acknowledged the SETTINGS. A decoder belongs to one
connection, and one thread at a time may use it. Its memory grows with the part of the table that
the peer really uses. Decoders may share COMMON, an object that MAKE-COMMON-FIELDS returned, and
thereby fields that their peers have in common, such as content-type; only one thread at a time may
use any of these decoders."
  (check-type table-octets index)
  (check-type list-octets index)
  (check-type list-fields index)
  (%make-decoder (min table-octets +initial-table-octets+) table-octets list-octets list-fields
                 common))

(defmethod print-object ((decoder decoder) stream)
  (print-unreadable-object (decoder stream :type t :identity t)
    (format stream "~D entr~:@P, ~D of ~D octets" (table-count decoder) (table-octets decoder)
            (table-limit decoder))))

(defun set-decoder-limit (decoder octets)
  "Allow the peer of DECODER a dynamic table of up to OCTETS, our SETTINGS_HEADER_TABLE_SIZE. Call
this when the peer has acknowledged our SETTINGS. A larger table is reduced at once; a smaller table
grows only when the peer sends a size update."
  (check-type octets index)
  (setf (decoder-ceiling decoder) octets)
  (when (< octets (table-limit decoder))
    (resize-table decoder octets)
    (forget-blocks decoder))
  octets)

(defun forget-repeats (decoder)
  "Drop the caches of DECODER, which save work for repeated octets; DECODER fills them again."
  (setf (decoder-literals decoder) nil
        (decoder-literal-octets decoder) 0
        (decoder-blocks decoder) nil
        (decoder-block-octets decoder) 0))

(define-hot forget-blocks ((decoder decoder)) null
  "Drop the blocks that DECODER has cached, because a change of the table alters their meaning, and
the blocks may refer to fields that the table has dropped."
  (when (plusp (decoder-block-octets decoder))
    (fill (the simple-vector (decoder-blocks decoder)) nil)
    (setf (decoder-block-octets decoder) 0))
  nil)

(defconstant +literal-octets+ 512
  "The memory in octets of a literal in a cache: its octets, and its field with strings.")
(defconstant +repeat-octets+ 384
  "The memory in octets of a block in a cache and of the upper layers' memo for it, without its
fields.")

(define-hot note-literal ((decoder decoder)) null
  "Count one more literal in the cache of DECODER, up to the number that fills the cache. A literal
that is replaced is not subtracted."
  (setf (decoder-literal-octets decoder)
        (min (+ +literal-octets+ (decoder-literal-octets decoder))
             (* +cache-sets+ +literal-octets+)))
  nil)

(define-hot (decoder-memory :inline t) ((decoder decoder)) index
  "Return the approximate number of octets of memory that DECODER keeps."
  (+ (table-memory decoder) (decoder-literal-octets decoder) (decoder-block-octets decoder)))

;;; Integers (section 5.1) and strings (section 5.2)

(define-hot read-long-integer ((octets octets) (at index) (end index) (prefix octet))
    (values index index)
  "Read the continuation octets at AT of an integer whose prefix bits, all ones, have the value
PREFIX."
  (let ((value prefix))
    (declare (type index value))
    (loop for shift from 0 to 28 by 7
          do (when (<= end at) (bad-block at "an integer is cut short"))
             (let ((octet (aref octets at)))
               (incf at)
               (incf value (ash (logand octet #x7F) shift))
               (when (< octet #x80) (return-from read-long-integer (values value at)))))
    (bad-block at "an integer has more than five continuation octets")))

(define-hot (read-prefixed-integer :inline t) ((octets octets) (at index) (end index) (mask octet))
    (values index index)
  "Read the integer whose prefix is the bits MASK of the octet at AT. Return the integer and the
position after it."
  (when (<= end at) (bad-block at "the block is cut short"))
  (let ((prefix (logand mask (aref octets at))))
    (if (< prefix mask)
        (values prefix (1+ at))
        (read-long-integer octets (1+ at) end mask))))

(define-hot (string-bounds :inline t) ((octets octets) (at index) (end index)) (values index index)
  "Return the positions at which the content of the string at AT begins and ends."
  (multiple-value-bind (length start) (read-prefixed-integer octets at end #x7F)
    (when (< (- end start) length) (bad-block at "a string is longer than the block"))
    (values start (+ start length))))

(define-hot read-string ((octets octets) (at index) (end index)) (values octets index)
  "Return the decoded string at AT as a fresh vector, and the position after it."
  (multiple-value-bind (start after) (string-bounds octets at end)
    (values (if (logtest #x80 (aref octets at))
                (decode-huffman octets start after)
                (subseq-octets octets start after))
            after)))

;;; Fields

(define-hot (entry-at :inline t) ((decoder decoder) (index index) (position index)) field
  (or (find-entry decoder index)
      (bad-block position (if (zerop index) "index 0" "index ~D is not in any table") index)))

(define-hot read-long-index ((decoder decoder) (octets octets) (at index) (end index))
    (values field index)
  "Return two values: the field whose index, of more than one octet, is at AT, and the position
after the index."
  (multiple-value-bind (index after) (read-prefixed-integer octets at end #x7F)
    (values (entry-at decoder index at) after)))

(define-hot read-literal ((decoder decoder) (octets octets) (at index) (end index) (mask octet)
                          (sensitive-p boolean))
    (values field index)
  "Return a fresh field from the literal at AT, and the position after it. MASK is the prefix of the
literal's name index."
  (multiple-value-bind (name-index after) (read-prefixed-integer octets at end mask)
    (multiple-value-bind (name after)
        (if (zerop name-index)
            (read-string octets after end)
            (values (field-name (entry-at decoder name-index at)) after))
      (multiple-value-bind (value after) (read-string octets after end)
        (values (%make-field name value sensitive-p) after)))))

(define-hot (literal-end :inline t) ((octets octets) (at index) (end index) (mask octet))
    (values index boolean)
  "Return two values: the end of the literal at AT, whose name index has the prefix MASK; and true
if a cache may keep the literal, because its meaning does not depend on the table."
  (multiple-value-bind (name-index after) (read-prefixed-integer octets at end mask)
    (when (zerop name-index)
      (setf after (nth-value 1 (string-bounds octets after end))))
    (let ((after (nth-value 1 (string-bounds octets after end))))
      (values after
              (and (<= name-index +static-count+)
                   (<= (- after at) +cache-octets+))))))

(define-hot read-plain-literal ((decoder decoder) (octets octets) (at index) (end index))
    (values field index)
  "Return two values: the field of the literal without indexing at AT, from the cache if possible,
and the position after the literal."
  (multiple-value-bind (after cacheable) (literal-end octets at end #x0F)
    (if (not cacheable)
        (read-literal decoder octets at end #x0F nil)
        (let* ((cache (or (decoder-literals decoder)
                          (setf (decoder-literals decoder) (make-raw-cache))))
               (hash (%hash-octets octets at after 0))
               (known (find-raw cache hash octets at after)))
          (if known
              (values (the field known) after)
              (let ((field (read-literal decoder octets at end #x0F nil)))
                (multiple-value-bind (cache twice) (note-miss cache hash)
                  (when twice
                    (store-raw cache hash octets at after field)
                    (note-literal decoder))
                  (setf (decoder-literals decoder) cache))
                (values field after)))))))

(define-hot read-indexed-literal ((decoder decoder) (octets octets) (at index) (end index))
    (values field index)
  "Return two values: the field of the literal with incremental indexing at AT, from the shared
cache if possible, and the position after the literal."
  (let ((common (decoder-common decoder)))
    (multiple-value-bind (after cacheable)
        (if common (literal-end octets at end #x3F) (values at nil))
      (if (not cacheable)
          (read-literal decoder octets at end #x3F nil)
          (let* ((hash (%hash-octets octets at after 0))
                 (known (find-raw common hash octets at after)))
            (if known
                (values (the field known) after)
                (let ((field (read-literal decoder octets at end #x3F nil)))
                  (when (and (nth-value 1 (note-miss common hash))
                             (common-name-p (field-name field)))
                    (store-raw common hash octets at after field))
                  (values field after))))))))

(define-hot decode-literal ((decoder decoder) (octets octets) (at index) (end index))
    (values field index)
  "Return two values: the field of the literal representation at AT, and the
position after the representation."
  (let ((octet (aref octets at)))
    (cond ((logtest #x40 octet)
           (multiple-value-bind (field after) (read-indexed-literal decoder octets at end)
             (insert-entry decoder field)
             (forget-blocks decoder)
             (values field after)))
          ((logtest #x20 octet)
           (bad-block at "a table size update after the first field"))
          ((logtest #x10 octet)
           (read-literal decoder octets at end #x0F t))
          (t
           (read-plain-literal decoder octets at end)))))

(define-hot (size-update-p :inline t) ((octet octet)) boolean
  (= #x20 (logand #xE0 octet)))

(define-hot read-size-updates ((decoder decoder) (octets octets) (at index) (end index)) index
  "Carry out the table size updates that begin at AT (section 6.3); return the position after them."
  (loop while (and (< at end) (size-update-p (aref octets at)))
        do (multiple-value-bind (limit after) (read-prefixed-integer octets at end #x1F)
             (when (< (decoder-ceiling decoder) limit)
               (bad-block at "a table size update to ~D, over the limit of ~D" limit
                          (decoder-ceiling decoder)))
             (resize-table decoder limit)
             (forget-blocks decoder)
             (setf at after)))
  at)

;;; Blocks

(define-hot decode-fields ((decoder decoder) (octets octets) (start index) (end index)
                           (list field-list))
    null
  (let ((old-count (restart-field-list list))
        (at (if (and (< start end) (size-update-p (aref octets start)))
                (read-size-updates decoder octets start end)
                start))
        (limit (decoder-list-octets decoder))
        (most (decoder-list-fields decoder)))
    (declare (type index at))
    (loop while (< at end)
          do (let ((octet (aref octets at)))
               (multiple-value-bind (field after)
                   (cond ((< octet #x80)
                          (decode-literal decoder octets at end))
                         ((< octet #xFF)
                          (values (entry-at decoder (logand octet #x7F) at) (1+ at)))
                         (t
                          (read-long-index decoder octets at end)))
                 (add-field list field limit most)
                 (setf at after))))
    (trim-field-list list old-count)))

(define-hot own-fields-octets ((decoder decoder) (list field-list)) index
  "The memory in octets of the fields of LIST that are neither in DECODER's table nor in the static
table."
  (let ((ring (decoder-ring decoder)) (octets 0))
    (declare (type index octets))
    (do-fields (field list octets)
      (unless (or (find field ring :test #'eq)
                  (find field (the simple-vector **static-fields**) :test #'eq))
        (incf octets (+ +field-memory+ (* 4 (field-size field))))))))

(define-hot repeat-of ((list field-list) (decoder decoder) (octets index)) (or null repeat)
  "Return a REPEAT with the fields of LIST, whose block has OCTETS octets, or nil if any of the
fields is sensitive."
  (do-fields (field list)
    (when (field-sensitive-p field) (return-from repeat-of nil)))
  (make-repeat (subseq (field-list-fields list) 0 (field-list-count list))
               (field-list-octets list)
               ;; the layers above keep a vector of the fields as well, and perhaps parts of their
               ;; texts, such as the path
               (+ +repeat-octets+ octets (* 16 (field-list-count list)) (field-list-octets list)
                  (own-fields-octets decoder list))))

(define-hot store-block ((decoder decoder) (cache simple-vector) (hash hash) (octets octets)
                         (start index) (end index) (repeat repeat))
    null
  "Store REPEAT in CACHE, the cache of DECODER's blocks, for the octets START to END, whose hash is
HASH."
  (let ((old (svref cache (1+ (cache-set cache hash)))))
    (when old (decf (decoder-block-octets decoder) (repeat-memory (the repeat old)))))
  (store-raw cache hash octets start end repeat)
  (incf (decoder-block-octets decoder) (repeat-memory repeat))
  nil)

(define-hot decode-new-block ((decoder decoder) (octets octets) (start index) (end index)
                              (list field-list) (hash hash))
    null
  "Decode a block that the cache does not have, and note it for the cache. A block that changes the
table is not cached, because it would have another meaning the next time."
  (let ((inserted (table-inserted decoder)))
    (decode-fields decoder octets start end list)
    (when (and (= inserted (table-inserted decoder))
               (not (field-list-overflow-p list))
               (not (size-update-p (aref octets start))))
      (let ((cache (or (decoder-blocks decoder)
                       (setf (decoder-blocks decoder) (make-raw-cache)))))
        (multiple-value-bind (cache twice) (note-miss cache hash)
          (setf (decoder-blocks decoder) cache)
          (when twice
            (let ((repeat (repeat-of list decoder (- end start))))
              (when repeat
                (store-block decoder cache hash octets start end repeat)
                (setf (field-list-repeat list) repeat))))))))
  nil)

(define-hot decode-block ((decoder decoder) (octets octets) (start index) (end index)
                          (list field-list))
    null
  "Decode the whole header block in START to END of OCTETS into LIST, which is cleared first. Signal
HPACK-ERROR for anything that RFC 7541 forbids; after that DECODER must not be used again. A list
that exceeds the decoder's limits is not an error; see FIELD-LIST-OVERFLOW-P."
  (assert (<= start end (length octets)))
  (if (<= 1 (- end start) +cache-octets+)
      (let* ((hash (%hash-octets octets start end 0))
             (cache (decoder-blocks decoder))
             (known (and cache (find-raw cache hash octets start end))))
        (if known
            (fill-field-list list (the repeat known))
            (decode-new-block decoder octets start end list hash)))
      (decode-fields decoder octets start end list)))
