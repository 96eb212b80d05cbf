;;;; HPACK: blocks, one after the other, to a decoder that remembers and shares what may be shared,
;;;; and to one that does neither: both must find the same fields or the same fault. What they find
;;;; must survive being encoded and decoded.
;;;;
;;;; An input is blocks, each behind its length in two octets.

(in-package #:clgrpc.tests.fuzz)

(defun behind-length (octets)
  (let ((length (min 65535 (length octets))))
    (join-octets (list (octets-of (ash length -8) (logand length 255)) (subseq octets 0 length)))))

(defun encoded-blocks (lists how)
  "The blocks that one encoder makes of LISTS of (name value), in the manner HOW."
  (let ((encoder (hpack:make-encoder)))
    (loop for list in lists
          collect (let ((buffer (make-buffer)))
                    (hpack:begin-block encoder buffer)
                    (loop for (name value) in list
                          do (hpack:encode-field encoder buffer (hpack:string-field name value)
                                                 how))
                    (subseq-octets (buffer-octets buffer) 0 (buffer-end buffer))))))

(defparameter *field-lists*
  '(((":method" "POST") (":scheme" "http") (":path" "/greeter/hello") (":authority" "localhost")
     ("content-type" "application/grpc") ("te" "trailers") ("grpc-timeout" "1S"))
    ((":status" "200") ("content-type" "application/grpc") ("x-trace-bin" "AAECAw"))
    (("grpc-status" "0") ("grpc-message" "a longer text, which Huffman makes shorter"))
    (("cookie" "a=b") ("cookie" "c=d") ("accept-language" "") ("" "") ("x" "~~~~^^^|||"))))

(defun block-samples ()
  (loop for how in '(:index :plain :never)
        append (loop for (from to) in '((0 4) (1 4) (2 4) (0 2))
                     collect (let* ((lists (subseq *field-lists* from to))
                                    (blocks (encoded-blocks (append lists lists lists) how))
                                    (parts (mapcar #'behind-length blocks)))
                               (make-sample :kind how :octets (join-octets parts)
                                            :parts blocks)))))

(defun mutate-blocks (sample siblings)
  (let ((blocks (copy-list (sample-parts sample)))
        (other (sample-parts (pick siblings))))
    (loop repeat (times-to-mutate)
          do (let ((at (below (length blocks))))
               (one-of
                 (setf (nth at blocks) (mutate-octets (nth at blocks) (coerce other 'vector)))
                 (setf (nth at blocks) (nth (below (length other)) other))
                 (setf (nth at blocks) (nth (below (length blocks)) blocks))
                 (setf (nth at blocks)
                       (join-octets (list (octets-of (logior #x20 (below 32))) (nth at blocks))))
                 (setf (nth at blocks) (random-octets (below 40))))))
    (join-octets (mapcar #'behind-length blocks))))

(defvar *common-fields* (hpack:make-common-fields) "What the remembering decoders share.")

(defun decoded (decoder octets start end list)
  "What DECODER makes of the block: the size and fields of its list; or its fault, a condition."
  (handler-case
      (progn
        (hpack:decode-block decoder octets start end list)
        (let ((pairs '()))
          (hpack:do-fields (field list)
            (push (list (hpack:field-name field) (hpack:field-value field)
                        (hpack:field-sensitive-p field))
                  pairs))
          (list* (hpack:field-list-octets list) (hpack:field-list-overflow-p list)
                 (nreverse pairs))))
    (hpack:hpack-error (error) error)))

(defun run-blocks (kind octets)
  (declare (ignore kind) (type octets octets))
  (let ((remembering (hpack:make-decoder :common *common-fields*))
        (plain (hpack:make-decoder))
        (list (hpack:make-field-list))
        (at 0))
    (loop while (<= (+ at 2) (length octets))
          do (let* ((start (+ at 2))
                    (end (min (length octets)
                              (+ start (logior (ash (aref octets at) 8) (aref octets (1+ at))))))
                    (a (decoded remembering octets start end list))
                    (b (decoded plain octets start end (hpack:make-field-list))))
               (hpack:forget-repeats plain)
               ;; of several faults either may be found first
               (cond ((and (typep a 'condition) (typep b 'condition)) (error a))
                     ((not (equalp a b))
                      (found "one decoder says ~A, the other ~A" a b))
                     (t (check-encoded (cddr a))))
               (setf at end)))))

(defun check-encoded (fields)
  "FIELDS must be the same when encoded and decoded."
  (let ((encoder (hpack:make-encoder)) (buffer (make-buffer)))
    (hpack:begin-block encoder buffer)
    (loop for (name value sensitive) in fields
          do (hpack:encode-literal encoder buffer name value (if sensitive :never :plain)))
    (let ((again (cddr (decoded (hpack:make-decoder :list-octets 1000000) (buffer-octets buffer) 0
                                (buffer-end buffer) (hpack:make-field-list)))))
      (unless (equalp fields again)
        (found "~A becomes ~A" fields again)))))

(define-target "hpack"
  :samples #'block-samples :mutate #'mutate-blocks :run #'run-blocks
  :conditions (hpack:hpack-error) :seconds 1/20)
