;;;; Every interleaving of a few small programs, with the sources of the real functions in them. A
;;;; program's functions are read from their files and rewritten so that each access to a shared
;;;; slot is a step: a read, a store, a compare-and-swap or a barrier on a small model of memory.
;;;;
;;;; Stores go through a buffer of their thread, from which they reach memory later and, unless a
;;;; write barrier or the same place keeps them in order, in any order; that is more than x86-64
;;;; allows and what arm64 does to stores. A compare-and-swap, a full barrier and an atomic count
;;;; empty the buffer first. Loads are not reordered.
;;;;
;;;; A thread is advanced by running its program from its beginning, with a log that answers the
;;;; questions it has asked before; the first question without an answer is its next step. So a
;;;; state is memory, buffers and logs, and the search visits each state once.

(in-package #:clgrpc.tests.loop)

;;; States

(defstruct (moment (:copier nil))
  "MEMORY is an alist from places to values, sorted; each thread of THREADS a list of its LOG,
newest first, its BUFFER of (place . value) and :BARRIER, oldest first, and whether it is DONE."
  (memory '())
  (threads '()))

(defun moment-key (moment)
  "62 bits that stand for WORLD; that two of a million have the same is as likely as not to be seen
ever."
  (declare (optimize speed))
  (labels ((mix (hash word)
             (declare (type (unsigned-byte 62) hash word))
             (let ((mixed (ldb (byte 62 0) (* (logxor hash word) #x1E3779B97F4A7C15))))
               (logxor mixed (ash mixed -29))))
           (hash (object seed)
             (declare (type (unsigned-byte 62) seed))
             (loop while (consp object)
                   do (setf seed (hash (pop object) (mix seed 40503))))
             (mix (mix seed (sxhash object)) 7)))
    (hash (moment-threads moment) (hash (moment-memory moment) 1))))

(defun place-value (memory place)
  (cdr (assoc place memory :test #'equal)))

(defun with-place (memory place value)
  (loop for entry in memory
        collect (if (equal place (car entry)) (cons place value) entry)))

;;; What a rewritten program calls

(defvar *log* '() "The answers that the running thread has had before, oldest first.")
(defvar *this-thread* nil)

(defun ask (&rest question)
  "The answer to QUESTION, from the log or, by leaving the program, from the moment."
  (if *log*
      (pop *log*)
      (throw 'step question)))

(defun answer (question memory buffer thread)
  "Return the answer to QUESTION, a step of THREAD, or :BLOCKED, and the memory and buffer after
it."
  (flet ((flushed ()
           (reduce (lambda (memory entry)
                     (if (consp entry) (with-place memory (car entry) (cdr entry)) memory))
                   buffer :initial-value memory)))
    (destructuring-bind (kind &optional place first second) question
      (ecase kind
        (:read (let ((own (find place (remove :barrier buffer) :key #'car :test #'equal
                                                               :from-end t)))
                 (values (if own (cdr own) (place-value memory place)) memory buffer)))
        (:write (values nil memory (append buffer (list (cons place first)))))
        (:barrier (ecase place
                    (:read (values nil memory buffer))
                    (:write (values nil memory (and buffer (append buffer '(:barrier)))))
                    (:memory (values nil (flushed) '()))))
        (:cas (let* ((memory (flushed)) (old (place-value memory place)))
                (values old (if (eql old first) (with-place memory place second) memory) '())))
        (:add (let* ((memory (flushed)) (old (place-value memory place)))
                (values old (with-place memory place (+ old first)) '())))
        (:await (if (funcall first (place-value memory place))
                    (values t memory buffer)
                    (values :blocked memory buffer)))
        (:spin (values :spin memory buffer))
        ;; the critical section: what the last one wrote must be seen, and nobody else be inside
        (:enter (unless (null (place-value memory :inside))
                  (error "~D and ~D run the loop." thread (place-value memory :inside)))
         (let ((own (find :data (remove :barrier buffer) :key #'car :from-end t)))
           (values (if own (cdr own) (place-value memory :data))
                   (with-place memory :inside thread) buffer)))
        (:leave (values nil
                        (with-place (with-place memory :inside nil)
                                    :sections (1+ (place-value memory :sections)))
                        (append buffer (list (cons :data first)))))))))

;;; Transitions

(defun next-question (program log thread)
  "The question of PROGRAM after LOG, newest first; nil if it ends."
  (let ((*this-thread* thread)
        (*log* (reverse log)))
    (catch 'step
      (funcall program)
      nil)))

(defun private-p (question)
  "True if no other thread can notice when the step QUESTION is made."
  (or (eq :write (first question))
      (equal '(:barrier :read) question)
      (equal '(:barrier :write) question)))

(defun advance-thread (moment index programs)
  "The moment after the next step of thread INDEX and the private steps that follow it; nil if it is
blocked."
  (destructuring-bind (log buffer done) (nth index (moment-threads moment))
    (let ((memory (moment-memory moment))
          (program (nth index programs)))
      (flet ((next ()
               (make-moment :memory memory
                           :threads (loop for old in (moment-threads moment)
                                          for i from 0
                                          collect (if (= i index) (list log buffer done) old)))))
        (unless done
          (loop for question = (next-question program log index)
                for first = t then nil
                while (and question (or first (private-p question)))
                do (multiple-value-bind (value new-memory new-buffer)
                       (answer question memory buffer index)
                     (setf memory new-memory
                           buffer new-buffer)
                     (case value
                       (:blocked (return-from advance-thread nil))
                       ;; an iteration that only looked has no effect, so forget it
                       (:spin (setf log (member :step log :key #'car))
                        (return-from advance-thread (next)))
                       (t (push (cons (if (looks-only-p question value) :look :step) value) log))))
                finally (unless question
                          (setf log '()
                                done t)))
          (next))))))

(defun looks-only-p (question value)
  (or (member (first question) '(:read :barrier))
      (and (eq :cas (first question)) (not (eql value (third question))))))

(defun flushes (moment index)
  "The moments in which one more store of thread INDEX has reached memory."
  (destructuring-bind (log buffer done) (nth index (moment-threads moment))
    (loop with passed = '()
          for (entry . rest) on buffer
          until (eq entry :barrier)
          unless (member (car entry) passed :key #'car :test #'equal)
            collect (make-moment
                     :memory (with-place (moment-memory moment) (car entry) (cdr entry))
                     :threads (let ((left (append (reverse passed) rest)))
                                (loop for old in (moment-threads moment)
                                      for i from 0
                                      collect (if (= i index)
                                                  (list log (member-if-not
                                                             (lambda (x) (eq x :barrier)) left)
                                                        done)
                                                  old))))
          do (push entry passed))))

(defun successors (moment programs)
  (loop for i below (length programs)
        for next = (advance-thread moment i programs)
        when next collect next
        append (flushes moment i)))

(defun explore (memory programs check)
  "Visit every state that PROGRAMS, functions, can reach from MEMORY, an alist. CHECK is called with
the memory of each final state and the list of the threads that have ended. Return the number of
states."
  (let ((seen (make-hash-table))
        (todo (list (make-moment :memory memory
                                :threads (loop for nil in programs collect (list '() '() nil))))))
    (setf (gethash (moment-key (first todo)) seen) t)
    (loop while todo
          do (let* ((moment (pop todo))
                    (key (moment-key moment))
                    (next (remove key (successors moment programs) :key #'moment-key)))
               (if next
                   (dolist (moment next)
                     (let ((key (moment-key moment)))
                       (unless (gethash key seen)
                         (setf (gethash key seen) t)
                         (push moment todo))))
                   (funcall check (moment-memory moment)
                            (mapcar #'third (moment-threads moment))))))
    (hash-table-count seen)))

;;; From sources to programs

(defun read-definitions (file)
  "The DEFINE-HOT and DEFUN forms of FILE, the name of a source of the loop."
  (with-open-file (stream (find file (support:system-sources "clgrpc/loop")
                                :key #'pathname-name :test #'string=))
    (let ((*package* (find-package '#:clgrpc.loop)) (end (list nil)))
      (loop for form = (read stream nil end)
            until (eq form end)
            when (and (consp form) (member (first form) '(define-hot defun)))
              collect form))))

(defun plain-definition (form)
  (destructuring-bind (name lambda-list . body) (rest form)
    (when (eq 'define-hot (first form)) (pop body)) ; its result
    (list* (if (consp name) (first name) name)
           (mapcar (lambda (parameter) (if (consp parameter) (first parameter) parameter))
                   lambda-list)
           (remove-if (lambda (form) (or (stringp form)
                                         (and (consp form) (eq 'declare (first form)))))
                      body))))

(defun rewritten (form places)
  "FORM, in which each access to one of PLACES, an alist from the reader of a slot, or a variable,
to its name in the model, is a step."
  (labels ((place (form)
             (cdr (assoc (if (consp form) (first form) form) places)))
           (walk (form)
             (cond ((symbolp form)
                    (cond ((place form) `(ask-value :read ,(place form)))
                          ((eq form 'sb-thread:*current-thread*) '*this-thread*)
                          (t form)))
                   ((atom form) form)
                   ((eq 'quote (first form)) form)
                   (t (walk-compound form))))
           (walk-compound (form)
             (destructuring-bind (operator . arguments) form
               (case operator
                 (setf `(progn ,@(loop for (left right) on arguments by #'cddr
                                       collect (if (place left)
                                                   `(ask-value :write ,(place left) ,(walk right))
                                                   `(setf ,left ,(walk right))))))
                 (sb-ext:compare-and-swap
                  `(ask-value :cas ,(place (first arguments)) ,@(mapcar #'walk (rest arguments))))
                 (sb-ext:atomic-incf `(ask-value :add ,(place (first arguments)) 1))
                 (sb-ext:atomic-decf `(ask-value :add ,(place (first arguments)) -1))
                 (sb-thread:barrier `(ask-value :barrier ,(first (first arguments))))
                 (sb-ext:spin-loop-hint '(ask-value :spin))
                 (unwind-protect `(prog1 ,@(mapcar #'walk arguments)))
                 (with-undoing
                  (destructuring-bind ((begin . undo) . body) arguments
                    `(progn ,(walk begin)
                            (prog1 (progn ,@(mapcar #'walk body)) ,@(mapcar #'walk undo)))))
                 (sb-sys:with-interrupts `(progn ,@(mapcar #'walk arguments)))
                 (sb-sys:without-interrupts `(progn ,@(mapcar #'walk arguments)))
                 (t (if (place form)
                        `(ask-value :read ,(place form))
                        (mapcar #'walk form)))))))
    (walk form)))

(defun ask-value (&rest question)
  (cdr (apply #'ask question)))

(defun compile-programs (definitions names places stubs programs)
  "Compile PROGRAMS, forms, with the functions NAMES of DEFINITIONS rewritten, and STUBS,
definitions for LABELS, in place of the functions that those call. Return a list of functions."
  (let ((functions (loop for name in names
                         for form = (find name definitions
                                          :key (lambda (form) (first (plain-definition form))))
                         do (assert form () "There is no ~S." name)
                         collect (destructuring-bind (name lambda-list . body)
                                     (plain-definition form)
                                   `(,name ,lambda-list ,@(mapcar (lambda (form)
                                                                    (rewritten form places))
                                                                  body))))))
    (handler-bind ((warning #'muffle-warning)
                   (sb-ext:compiler-note #'muffle-warning))
      (funcall (compile nil `(lambda ()
                               (let ((loop nil))
                                 (declare (ignorable loop))
                                 (labels (,@functions ,@stubs)
                                   (list ,@(loop for program in programs
                                                 collect `(lambda ()
                                                            ,(rewritten program places))))))))))))
