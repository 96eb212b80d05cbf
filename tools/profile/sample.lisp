;;;; Samples in the output of `perf script`, as stacks of frames: for each sample a line with the
;;;; thread's id and the time, then a line for each frame, innermost first, `ADDRESS FUNCTION
;;;; (IMAGE)`, and an empty line. Addresses in files are places in the file. Pure functions of a
;;;; stream.

(in-package #:clgrpc.profile)

(defstruct (symbolizer (:copier nil))
  "A resolver of the functions of a process."
  (program "" :type string :read-only t) ; the path of the process's program
  (functions nil :type (or null ranges) :read-only t) ; the program's, by place in the file
  (made nil :type (or null ranges) :read-only t) ; the entries of perf's map, by address
  ;; how places in the program's file become addresses, for functions that only MADE has
  (mappings '() :type list :read-only t)
  (frames (make-hash-table :test 'equal) :type hash-table :read-only t)) ; frames found already

(sb-ext:define-load-time-global **unknown-frame** (make-frame :name "(unknown)"))

(defun place-address (symbolizer place)
  "The address in memory of PLACE in the program's file, or nil if that place is not in memory."
  (let ((mapping (find-if (lambda (mapping)
                            (and (string= (mapping-path mapping) (symbolizer-program symbolizer))
                                 (<= (mapping-offset mapping) place)
                                 (< (- place (mapping-offset mapping))
                                    (- (mapping-end mapping) (mapping-start mapping)))))
                          (symbolizer-mappings symbolizer))))
    (and mapping (+ (mapping-start mapping) (- place (mapping-offset mapping))))))

(defun lisp-name (symbolizer place program-p)
  "The label of the Lisp function at PLACE, in the program's file if PROGRAM-P is true, else in
memory. Return nil if no such function is known."
  (flet ((find-in (ranges place)
           (and ranges place (find-range ranges place))))
    (if-let ((name (and program-p (find-in (symbolizer-functions symbolizer) place))))
      (function-label name)
      (find-in (symbolizer-made symbolizer)
               (if program-p (place-address symbolizer place) place)))))

(defun image-program-p (symbolizer image)
  (or (string= image (symbolizer-program symbolizer))
      ;; the program file was built again while the process runs
      (string= image (format nil "~A (deleted)" (symbolizer-program symbolizer)))))

(defun name-frame (symbolizer place symbol image)
  "The FRAME of SYMBOL, perf's name, of IMAGE, at PLACE."
  (cond ((uiop:string-prefix-p "[kernel" image) (make-kernel-frame symbol))
        ((and (char= #\[ (char image 0)) (search "kernel" image)) (make-kernel-frame symbol))
        ((string/= symbol "[unknown]")
         (if (uiop:string-prefix-p "/tmp/perf-" image)
             (make-lisp-frame symbol)
             (make-native-frame symbol image)))
        (t (let ((name (lisp-name symbolizer place (image-program-p symbolizer image))))
             (cond (name (make-lisp-frame name))
                   ((or (uiop:string-prefix-p "/usr/lib" image) (uiop:string-prefix-p "/lib" image)
                        (uiop:string-prefix-p "[vdso" image))
                    ;; a function without a name still belongs to its library
                    (make-native-frame (file-name image) image))
                   (t **unknown-frame**))))))

(defun file-name (path)
  (subseq path (1+ (or (position #\/ path :from-end t) -1))))

(defun parse-frame (line symbolizer)
  "The FRAME that LINE, of the output of perf script, describes, or nil if it describes none."
  (let* ((start (position-if-not (lambda (char) (find char '(#\Space #\Tab))) line))
         (space (and start (position #\Space line :start start)))
         (open (position #\( line :from-end t))
         (close (position #\) line :from-end t)))
    ;; the path of an image may contain brackets itself, such as "(deleted)"
    (when (and open (search "(deleted))" line))
      (setf open (position #\( line :end open :from-end t)))
    (when (and space open close (< space open close))
      (let ((key (subseq line start)))
        (or (gethash key (symbolizer-frames symbolizer))
            (let ((place (ignore-errors (parse-integer line :start start :end space :radix 16))))
              (and place
                   (setf (gethash key (symbolizer-frames symbolizer))
                         (name-frame symbolizer place
                                     (string-trim " " (subseq line space open))
                                     (subseq line (1+ open) close))))))))))

(defun parse-seconds-ns (text start end)
  "The decimal number of seconds in TEXT from START to END, in nanoseconds; nil if it is malformed."
  (when-let ((dot (position #\. text :start start :end end)))
    (let ((seconds (parse-integer text :start start :end dot :junk-allowed t))
          (fraction (parse-integer text :start (1+ dot) :end end :junk-allowed t)))
      (and seconds fraction
           (+ (* 1000000000 seconds)
              (* fraction (expt 10 (max 0 (- 9 (- end dot 1))))))))))

(defun parse-sample-head (line)
  "The thread's id and the time in nanoseconds from LINE, `TID SECONDS:`; nil if it is malformed."
  (multiple-value-bind (tid end) (parse-integer line :junk-allowed t)
    (let* ((start (and tid (position #\Space line :start end :test-not #'char=)))
           (colon (and start (position #\: line :start start)))
           (ns (and colon (parse-seconds-ns line start colon))))
      (and ns (values tid ns)))))

(defun map-samples (function stream symbolizer)
  "Call FUNCTION with each sample in STREAM, the output of `perf script -F tid,time,ip,sym,dso`:
with the thread's id, the time in nanoseconds and the frames, innermost first."
  (declare (type function function))
  (let ((tid nil) (ns 0) (frames '()))
    (flet ((end-sample ()
             (when tid (funcall function tid ns (nreverse frames)))
             (setf tid nil frames '())))
      (loop for line = (read-line stream nil)
            while line
            do (cond ((every (lambda (char) (find char '(#\Space #\Tab))) line) (end-sample))
                     ((null tid) (setf (values tid ns) (parse-sample-head line)))
                     (t (push (or (parse-frame line symbolizer) **unknown-frame**) frames))))
      (end-sample))))

;;; The tree of stacks

(defstruct (node (:constructor make-node (frame)) (:copier nil))
  "A node stands for a function called from one stack."
  (frame nil :type (or null frame) :read-only t)
  (samples 0 :type unsigned-byte)       ; the samples that the node is in
  (own 0 :type unsigned-byte)           ; the samples in which the node was the innermost
  (children (make-hash-table :test 'eq) :type hash-table :read-only t)) ; maps frames to nodes

(defun child-node (node frame)
  (alexandria:ensure-gethash frame (node-children node) (make-node frame)))

(defun add-stack (root frames count)
  "Count COUNT samples with the stack FRAMES, innermost first, in the tree below ROOT."
  (incf (node-samples root) count)
  (let ((node root))
    (dolist (frame (reverse frames))
      (setf node (child-node node frame))
      (incf (node-samples node) count))
    (incf (node-own node) count)))

;;; Sums

(defstruct (sums (:copier nil))
  "The counts of samples."
  (samples 0 :type unsigned-byte)
  ;; samples whose innermost frame is unknown, or that have no frames
  (unknown-samples 0 :type unsigned-byte)
  (frames 0 :type unsigned-byte)          ; the number of frames of all stacks
  (unknown-frames 0 :type unsigned-byte)  ; frames without a name
  (areas (make-hash-table :test 'equal) :type hash-table :read-only t) ; maps names to samples
  (phases (make-hash-table :test 'equal) :type hash-table :read-only t)
  ;; maps ids or names of threads to samples
  (threads (make-hash-table :test 'equal) :type hash-table :read-only t)
  ;; samples by the innermost function
  (own (make-hash-table :test 'equal) :type hash-table :read-only t)
  ;; samples by every function on the stack
  (whole (make-hash-table :test 'equal) :type hash-table :read-only t)
  (root (make-node nil) :type node :read-only t))

(defun add-sample (sums thread frames &optional (count 1))
  "Count COUNT samples of THREAD, an id or a name, with the stack FRAMES, innermost first."
  (flet ((add (key table) (incf (gethash key table 0) count)))
    (incf (sums-samples sums) count)
    (incf (sums-frames sums) (* count (length frames)))
    (incf (sums-unknown-frames sums) (* count (count :unknown frames :key #'frame-kind)))
    (when (or (null frames) (eq :unknown (frame-kind (first frames))))
      (incf (sums-unknown-samples sums) count))
    (add thread (sums-threads sums))
    (add (stack-area frames) (sums-areas sums))
    (add (stack-phase frames) (sums-phases sums))
    (when frames (add (frame-name (first frames)) (sums-own sums)))
    (loop for (frame . outer) on frames
          unless (find (frame-name frame) outer :key #'frame-name :test #'string=)
            do (add (frame-name frame) (sums-whole sums)))
    (add-stack (sums-root sums) frames count)))

(defun sum-samples (stream symbolizer begin-ns end-ns)
  "The SUMS of the samples from BEGIN-NS to END-NS in STREAM, the output of perf script."
  (let ((sums (make-sums)))
    (map-samples (lambda (tid ns frames)
                   (when (<= begin-ns ns end-ns) (add-sample sums tid frames)))
                 stream symbolizer)
    sums))
