;;;; The header tracestate (W3C Trace Context, section 3.3): a list of keys and values of tracing
;;;; systems, which others pass on. The list may be split over several headers, which form one list.
;;;;
;;;;   foo=1, tenant@vendor=2
;;;;
;;;; A list with an error anywhere is omitted as a whole; the traceparent remains valid. Of members
;;;; with the same key the first, which is the newest, is kept. A list of more than 512 characters
;;;; is shortened by removing members: first those of more than 128 characters, then the last ones.
;;;; A list of more than 2,048 characters, or of more than 512 in several headers, counts as invalid
;;;; and is not examined: every request may have a list, and a peer can repeat it by a few octets.

(in-package #:clgrpc.trace)

(defconstant +most-members+ 32 "The maximum number of members of a tracestate.")
(defconstant +most-state-octets+ 512
  "The maximum length, in characters, of a tracestate that is passed on.")
(defconstant +long-member-octets+ 128
  "The length of a member above which it is among the first to be removed from a tracestate that is
too long.")
(defconstant +longest-state-octets+ 2048
  "The maximum number of octets of a tracestate that is read. A tracestate in several headers, which
is parsed in each request, is not read if it is longer than +MOST-STATE-OCTETS+.")

(deftype state-text () "Text that may be a tracestate." '(simple-array character (*)))

(defstruct (member-bounds (:constructor make-member-bounds (start equals end)) (:copier nil))
  "The place of a member of a tracestate in its text."
  (start 0 :type index :read-only t)    ; where its key begins
  (equals 0 :type index :read-only t)   ; where the key ends
  (end 0 :type index :read-only t))     ; where its value ends

(declaim (sb-ext:freeze-type member-bounds))

(define-printer (place member-bounds)
  "~D to ~D" (member-bounds-start place) (member-bounds-end place))

(define-hot (lower-or-digit-p :inline t) ((char character)) boolean
  (or (char<= #\a char #\z) (char<= #\0 char #\9)))

(define-hot key-text-p ((text state-text) (start index) (end index) (most index)) boolean
  "True if TEXT from START to END is valid as a key, or as a part of a key, and has MOST characters
at most."
  (and (< start end)
       (<= (- end start) most)
       (lower-or-digit-p (char text start))
       (loop for i of-type index from start below end
             for char = (char text i)
             always (or (lower-or-digit-p char)
                        (case char ((#\_ #\- #\* #\/) t))))))

(define-hot key-p ((text state-text) (start index) (end index)) boolean
  "True if TEXT from START to END is a key: a name, or a tenant and a system with @ between."
  (let ((at (position #\@ text :start start :end end)))
    (cond ((null at) (and (key-text-p text start end 256)
                          (char<= #\a (char text start) #\z)))
          (t (and (key-text-p text start at 241)
                  (key-text-p text (1+ at) end 14)
                  (char<= #\a (char text (1+ at)) #\z))))))

(define-hot value-p ((text state-text) (start index) (end index)) boolean
  "True if TEXT from START to END is a value: printable ASCII, not empty, without comma and =, and
with no blank at the end."
  (and (< start end)
       (<= (- end start) 256)
       (char/= #\Space (char text (1- end)))
       (loop for i of-type index from start below end
             for char = (char text i)
             always (and (char<= #\Space char #\~) (char/= char #\,) (char/= char #\=)))))

(define-hot find-member ((text state-text) (start index) (end index)) (or null member-bounds)
  "The bounds of TEXT from START to END as a member, KEY=VALUE; nil if the text is malformed."
  (let ((equals (position #\= text :start start :end end)))
    (and equals
         (key-p text start equals)
         (value-p text (1+ equals) end)
         (make-member-bounds start equals end))))

(define-hot same-key-p ((text state-text) (one member-bounds) (other member-bounds)) boolean
  (let ((start (member-bounds-start one)) (from (member-bounds-start other)))
    (and (= (- (member-bounds-equals one) start) (- (member-bounds-equals other) from))
         (loop for i of-type index from start below (member-bounds-equals one)
               for j of-type index from from
               always (char= (char text i) (char text j))))))

(define-hot (space-or-tab-p :inline t) ((char character)) boolean
  (or (char= char #\Space) (char= char #\Tab)))

(define-hot find-members ((text state-text)) (or list (eql :wrong))
  "The positions of the members of TEXT, a tracestate; of several members with the same key only the
first is included. :WRONG if there are too many members, or if one is malformed."
  (let ((members '()) (count 0) (start 0))
    (declare (type index count start))
    (loop
      (let* ((comma (or (position #\, text :start start) (length text)))
             (end comma))
        (declare (type index end))
        (loop while (and (< start end) (space-or-tab-p (char text start))) do (incf start))
        (loop while (and (< start end) (space-or-tab-p (char text (1- end)))) do (decf end))
        (when (< start end)
          (let ((place (and (< count +most-members+) (find-member text start end))))
            (unless place (return :wrong))
            (incf count)
            (unless (loop for other in members thereis (same-key-p text place other))
              (push place members))))
        (when (= comma (length text)) (return (nreverse members)))
        (setf start (1+ comma))))))

(defun member-length (place)
  (- (member-bounds-end place) (member-bounds-start place)))

(defun state-length (members)
  "How long the tracestate of MEMBERS is."
  (max 0 (1- (loop for member in members sum (1+ (member-length member))))))

(defun shorten-state (members)
  "MEMBERS, shortened until a tracestate has room for them."
  (flet ((without (predicate)
           (when-let ((at (position-if predicate members :from-end t)))
             (setf members (append (subseq members 0 at) (nthcdr (1+ at) members))))))
    (loop while (> (state-length members) +most-state-octets+)
          do (or (without (lambda (member) (> (member-length member) +long-member-octets+)))
                 (without (constantly t))))
    members))

(defun write-members (text members)
  "The tracestate of MEMBERS, places in TEXT."
  (let ((state (make-string (state-length members) :initial-element #\,)) (at 0))
    (dolist (member members state)
      (replace state (the state-text text) :start1 at :start2 (member-bounds-start member)
                                           :end2 (member-bounds-end member))
      (incf at (1+ (member-length member))))))

(defun join-states (texts)
  "TEXTS, values of tracestate in their order, joined into one."
  (let ((joined (make-string (1- (loop for text in texts sum (1+ (length text))))
                             :initial-element #\,))
        (at 0))
    (dolist (text texts joined)
      (replace joined (the simple-string text) :start1 at)
      (incf at (1+ (length text))))))

(defun read-tracestate (texts)
  "The tracestate in TEXTS, the values of its headers in their order, as one text; empty if it is
missing or invalid."
  (if (or (null texts)
          (< (if (rest texts) +most-state-octets+ +longest-state-octets+)
             (loop for text in texts sum (length (the simple-string text)))))
      ""
      (let* ((text (join-states texts))
             (members (find-members text)))
        (if (eq :wrong members)
            ""
            (write-members text (shorten-state members))))))

(defun trace-state (context)
  "Return the tracestate of CONTEXT, which CURRENT-TRACE returned, as an alist from key to value,
strings: the entries of other tracing systems, in their order. From any thread."
  (let ((text (coerce (context-state context) 'state-text)))
    (loop for place in (find-members text)
          for equals = (member-bounds-equals place)
          collect (cons (subseq text (member-bounds-start place) equals)
                        (subseq text (1+ equals) (member-bounds-end place))))))
